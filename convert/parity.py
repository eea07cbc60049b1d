"""Run the same text through PyTorch and MLX and compare every layer's hidden states.

Both sides compute in float32 on the CPU. The PyTorch side runs prompt and completion in one pass;
the MLX side prefills the prompt and then runs the completion as its decoder does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from mlx_lm.models.cache import make_prompt_cache
from peft import PeftModel
from rich.table import Table

from specstream_mlx.base_model import one_line
from specstream_mlx.config import UserError
from specstream_mlx.decoder import Decoder
from specstream_mlx.generation import SpeculativeModel, load
from specstream_mlx.msa import Rows
from specstream_mlx.tree import DraftTree

from .adapter_to_mlx import LORA_CONFIG, STREAM_CONFIG
from .formats import load_adapter, load_base
from .reference import SpeculativeStreamingModel

BOUND = 1e-4
SAMPLE_TEXT = (
    "Could you please send me the numbers for the report before the meeting on Thursday? "
    "I will check them and tell the team what is still missing."
)


@dataclass
class HiddenStates:
    """What one side computed, as float32 arrays.

    Attributes:
        main: each layer's output (T, h).
        logits: (T, V) of the main stream.
        streams: streams as seeded and after each MSA layer, (C, gamma, h), from the last prompt
            token on.
        stream_logits: (C, gamma, V).
        early_exit: (C, V), the pruner's logits.
    """

    main: list[np.ndarray]
    logits: np.ndarray
    streams: list[np.ndarray] = field(default_factory=list)
    stream_logits: np.ndarray | None = None
    early_exit: np.ndarray | None = None

    def named(self) -> dict[tuple[str, str], np.ndarray]:
        """Arrays by (place, kind of row): the lines and columns of the table."""
        arrays = {(f"layer {number}", "main"): a for number, a in enumerate(self.main)}
        if self.streams:
            first = len(self.main) - len(self.streams) + 1
            arrays["stream init", "streams"] = self.streams[0]
            for number, streams in enumerate(self.streams[1:], first):
                arrays[f"layer {number}", "streams"] = streams
            arrays["logits", "streams"] = self.stream_logits
        arrays["logits", "main"] = self.logits
        if self.early_exit is not None:
            arrays["early-exit logits", "main"] = self.early_exit
        return arrays


@dataclass(frozen=True)
class Difference:
    """The largest difference between the sides at one place.

    Attributes:
        place: a layer, or logits.
        rows: ``main`` or ``streams``.
        largest: largest absolute difference.
        magnitude: largest absolute value on the PyTorch side.
    """

    place: str
    rows: str
    largest: float
    magnitude: float

    @property
    def relative(self) -> float:
        """``largest / max(1, magnitude)``, which ``BOUND`` bounds."""
        return self.largest / max(1.0, self.magnitude)


def verify(
    torch_base: Path, torch_adapter: Path | None, mlx_base: Path, mlx_adapter: Path | None
) -> list[Difference]:
    """Compare a base, or a base with an adapter, with what was converted from it.

    Args:
        torch_base: Hugging Face directory.
        torch_adapter: PyTorch-side directory, or ``None``.
        mlx_base: a base that the MLX side reads; may be ``torch_base``.
        mlx_adapter: MLX-side directory, or ``None``.

    Raises:
        UserError: a directory cannot be read.
    """
    with mx.stream(mx.cpu):
        model, tokenizer = load(mlx_base, adapter_path=mlx_adapter)
        tokens = tokenizer.encode(SAMPLE_TEXT)
        if len(tokens) < 2:
            raise UserError(f"the tokenizer of {mlx_base} makes {len(tokens)} token of a text")
        prompt = len(tokens) // 2
        found = mlx_states(model, tokens, prompt)
    reference = load_reference(torch_base, torch_adapter)
    return differences(found, torch_states(reference, tokens, prompt))


def load_reference(base: Path, adapter: Path | None) -> torch.nn.Module:
    """The PyTorch side: a ``SpeculativeStreamingModel`` where the adapter has streams.

    Raises:
        UserError: a directory cannot be read.
    """
    if adapter is None:
        return load_base(base)
    if (adapter / STREAM_CONFIG).exists():
        return load_adapter(base, adapter)
    try:
        return PeftModel.from_pretrained(load_base(base), adapter).eval()
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{adapter / LORA_CONFIG}: {one_line(error)}") from None


def differences(found: HiddenStates, expected: HiddenStates) -> list[Difference]:
    """The largest differences of ``found`` (MLX) from ``expected`` (PyTorch), place by place."""
    wanted, given = expected.named(), found.named()
    return [
        Difference(
            place,
            rows,
            float(np.abs(given[place, rows] - array).max()),
            float(np.abs(array).max()),
        )
        for (place, rows), array in wanted.items()
    ]


def table(results: Sequence[Difference]) -> Table:
    """The differences for people, a line per layer."""
    lines: dict[str, dict[str, str]] = {}
    for result in results:
        lines.setdefault(result.place, {})[result.rows] = f"{result.relative:.1e}"
    has_streams = any("streams" in line for line in lines.values())
    columns = ["main", "streams"] if has_streams else ["main"]
    output = Table("MLX - PyTorch", *columns, title="largest |difference| / max(1, largest |x|)")
    for place, line in lines.items():
        output.add_row(place, *(line.get(column, "") for column in columns))
    return output


def torch_states(model: torch.nn.Module, tokens: Sequence[int], prompt: int) -> HiddenStates:
    """The PyTorch side's hidden states.

    Args:
        model: from ``load_reference``.
        tokens: T token ids.
        prompt: how many of them are the prompt.
    """
    ids = torch.tensor([list(tokens)])
    with torch.no_grad():
        if isinstance(model, SpeculativeStreamingModel):
            output = model(
                ids, torch.tensor([prompt]), torch.tensor([len(tokens)]), keep_layers=True
            )
            trunk = output.trunk
            states = HiddenStates(
                [layer[0].numpy() for layer in trunk.main_layers],
                output.main_logits[0].numpy(),
                [streams[0].numpy() for streams in trunk.stream_layers],
                output.stream_logits[0].numpy(),
            )
            if model.config.pruner_rank:
                states.early_exit = model.early_exit_logits(trunk.seed)[0, prompt - 1 :].numpy()
            return states
        causal_lm = model.get_base_model() if isinstance(model, PeftModel) else model
        layers: list[np.ndarray] = []
        hooks = [
            layer.register_forward_hook(lambda _, __, out: layers.append(out[0].numpy()))
            for layer in causal_lm.model.layers
        ]
        try:
            return HiddenStates(layers, causal_lm(ids).logits[0].numpy())
        finally:
            for hook in hooks:
                hook.remove()


def mlx_states(model: SpeculativeModel, tokens: Sequence[int], prompt: int) -> HiddenStates:
    """The MLX side's hidden states; the arguments are those of ``torch_states``.

    The last prompt token takes a step of its own and the completion is one chain, so committed
    and uncommitted rows are both attended to.
    """
    decoder = _RecordingDecoder(model.model, model.streams, make_prompt_cache(model.model))
    steps = (tokens[: prompt - 1], tokens[prompt - 1 : prompt], tokens[prompt:])
    logits, recordings = [], []
    for number, step in enumerate(steps):
        if not step:
            continue
        beside = number > 0 and model.streams is not None
        result = decoder.step(_chain(step), "beside" if beside else "none")
        decoder.commit(range(len(step)), range(len(step)))
        logits.append(result.logits)
        recordings.append(decoder.take(len(step)))
    states = HiddenStates(
        _joined([main for main, _ in recordings]), np.array(mx.concatenate(logits))
    )
    if model.streams is None:
        return states
    states.streams = _joined([streams for _, streams in recordings if streams])
    last = mx.array(states.streams[-1])
    states.stream_logits = np.array(decoder.head(last.flatten(0, 1)).reshape(*last.shape[:2], -1))
    if model.streams.config.pruner_rank:
        entry = mx.concatenate(decoder.entries)
        states.early_exit = np.array(decoder.early_exit_logits(entry))
    return states


class _RecordingDecoder(Decoder):
    """A decoder that keeps what every layer returns.

    Attributes:
        entries: for each step with streams, (m, h) the main stream at the first MSA layer.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.entries: list[mx.array] = []
        self._outputs: list[mx.array] = []
        self._seeds: list[mx.array] = []

    def take(self, main_rows: int) -> tuple[list[mx.array], list[mx.array]]:
        """What the layers returned since the last call.

        Args:
            main_rows: tokens of the step.

        Returns:
            (rows, h) of each layer's main stream, and (rows, gamma, h) of the streams as seeded
            and after each MSA layer.
        """
        main = [output[:main_rows] for output in self._outputs]
        streams = [
            rows[main_rows:].reshape(main_rows, -1, rows.shape[-1])
            for rows in (*self._seeds, *self._outputs)
            if len(rows) > main_rows
        ]
        self._outputs, self._seeds = [], []
        return main, streams

    def run(self, tokens: mx.array, stand_ins: Sequence[Any], caches: Sequence[Any]) -> mx.array:
        watched = [_Watched(s, self._outputs) if isinstance(s, nn.Module) else s for s in stand_ins]
        return super().run(tokens, watched, caches)

    def msa_layer(self, number: int, hidden: mx.array, rows: Rows, *args: Any) -> mx.array:
        if number == self.streams.config.first_msa_layer:
            self._seeds.append(hidden[0])
            self.entries.append(hidden[0, : args[0]])
        output = super().msa_layer(number, hidden, rows, *args)
        self._outputs.append(output[0])
        return output


class _Watched:
    """Stands in for ``layer`` and appends the (rows, h) that it returns to ``outputs``."""

    def __init__(self, layer: nn.Module, outputs: list[mx.array]):
        self._layer, self._outputs = layer, outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        output = self._layer(*args, **kwargs)
        self._outputs.append(output[0])
        return output


def _chain(tokens: Sequence[int]) -> DraftTree:
    """A tree without branches."""
    depths = np.arange(len(tokens), dtype=np.int32)
    return DraftTree(np.array(tokens, np.int32), depths - 1, depths)


def _joined(steps: Sequence[Sequence[mx.array]]) -> list[np.ndarray]:
    """Layer by layer, the rows of several steps one after the other."""
    return [np.array(mx.concatenate(list(rows))) for rows in zip(*steps, strict=True)]
