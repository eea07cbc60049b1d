"""Limits of the export; what is beyond them is refused before a weight is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specstream_mlx.errors import UserError, is_integer, shown
from specstream_mlx.models.architectures import architecture_of, completed, context_length
from specstream_mlx.options import COUNT, check_options, each, option
from specstream_mlx.stream_config import StreamConfig

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
_LEAST_EPSILON = 6e-8  # half precision's smallest number, in which Core ML takes a norm's epsilon
_MOST_NODES = 64


@dataclass(frozen=True)
class Sizes:
    """The fixed shapes of a package."""

    context: int = option(..., COUNT)  # rows that may be committed
    nodes: tuple[int, ...] = option((8, 16), each("a list of integers", is_integer))  # of the trees
    chunk: int = option(64, COUNT)  # prompt tokens of a prefill call
    candidates: int = option(4, COUNT)  # k, guesses of a stream

    def __post_init__(self) -> None:
        check_options(self)
        nodes, right = set(self.nodes), range(1, _MOST_NODES + 1)
        if not nodes or not nodes.issubset(right) or len(nodes) < len(self.nodes):
            raise UserError(
                f"nodes is {shown(list(self.nodes))}, expected different numbers from 1 to "
                f"{_MOST_NODES}"
            )
        if self.context < max(*self.nodes, self.chunk):
            raise UserError(
                f"context is {self.context}, expected at least {max(*self.nodes, self.chunk)}, "
                "the most rows of a call"
            )

    @property
    def most_nodes(self) -> int:
        """Rows that a step gathers to commit those of the step before, whatever its own tree."""
        return max(self.nodes)

    @property
    def rows(self) -> int:
        """Rows of the caches, a multiple of 32: uncommitted ones go after the context."""
        return -(-(self.context + max(self.chunk, self.most_nodes)) // 32) * 32


def check_base(config: Mapping[str, Any], sizes: Sizes) -> None:
    """Check that a base can be exported, by its ``config.json``."""
    config = completed(config)
    family = config["model_type"]
    if family not in FAMILIES:
        raise UserError(
            f"model_type is {family!r}, expected one of {', '.join(FAMILIES)} to export to Core ML"
        )
    limit = context_length(config)
    if limit is not None and sizes.context > limit:
        raise UserError(f"context is {sizes.context}, expected at most the model's {limit}")
    if sizes.candidates > config["vocab_size"]:
        raise UserError(
            f"candidates is {sizes.candidates}, expected at most the {config['vocab_size']} tokens "
            "of the model"
        )
    if config.get("rope_traditional"):
        raise UserError("rope_traditional is True, expected False to export to Core ML")
    windows = architecture_of(family).windows
    limits = [w for w in windows(config) if w is not None] if windows is not None else []
    if limits and min(limits) < sizes.context:
        raise UserError(
            f"sliding_window is {min(limits)}, expected at least the context of {sizes.context}: "
            "windows are not exported to Core ML"
        )
    mode = (config.get("quantization") or {}).get("mode", "affine")
    if mode != "affine":
        raise UserError(f"quantization's mode is {shown(mode)}, expected 'affine'")
    epsilon = config["rms_norm_eps"]
    if epsilon < _LEAST_EPSILON:
        raise UserError(
            f"rms_norm_eps is {epsilon}, expected at least {_LEAST_EPSILON}: Core ML takes it in "
            "half precision"
        )


def check_adapter(
    name: str, streams: StreamConfig | None, fields: Mapping[str, Any], sizes: Sizes
) -> None:
    """Check that an adapter can be exported."""
    keys = (fields.get("lora_parameters") or {}).get("keys") or ()
    vocabulary = streams.draft_vocabulary if streams else 0
    stream_keys = streams.stream_keys if streams else 0
    refusals = {
        "fine_tune_type is 'dora', expected 'lora'": fields.get("fine_tune_type") == "dora",
        "LoRA is on embed_tokens, expected on layers or lm_head": any(
            key.endswith("embed_tokens") for key in keys
        ),
        "LoRA is on lm_head and there is a draft_vocabulary, expected one of them": (
            vocabulary and "lm_head" in keys
        ),
        f"stream_keys is {stream_keys}, expected 0": stream_keys,
        f"draft_vocabulary is {vocabulary}, expected at least the {sizes.candidates} candidates of "
        "a stream": 0 < vocabulary < sizes.candidates,
    }
    for sentence, refused in refusals.items():
        if refused:
            raise UserError(f"{name}: {sentence}, to export to Core ML")


def check_names(names: Sequence[str]) -> None:
    """Check that adapters' names can begin functions' names."""
    for name in names:
        if not name.isascii() or not name.isidentifier():
            raise UserError(
                f"the adapter's name is {shown(name)}, expected letters, digits and underscores "
                "with a letter first, since functions are called after it"
            )
        if names.count(name) > 1:
            raise UserError(f"two adapters are called {name}, expected different names")
