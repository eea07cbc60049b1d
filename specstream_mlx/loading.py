"""Loading: ``load`` finds, reads and checks a base model and mounts an adapter on it."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, overload

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from .adapters.description import ADAPTER_CONFIG, describe
from .adapters.files import Adapter, mounted, read_adapter
from .distributed.ranks import Ranks, ranks_of
from .distributed.sharding import check_divisible, shard
from .drafting.eagle3 import head_config, head_files, read_head
from .drafting.published_heads import head_for, heads_of_size, repository_of
from .engine.compiled import TRACED_AT, CompiledSteps
from .engine.draft_head import HeadConfig, HeadWatch, MountedHead
from .engine.self_check import check_tree
from .engine.several_adapters import Layout, layout_of
from .errors import Mode, UserError, naming, shown
from .files import not_finite, read_json, reason, sampled_digest, tensor_headers, tokenizer_files
from .hardware import device
from .hardware.weights import HeldWeights, hold_weights
from .model_paths import (
    adapter_directory,
    from_hub,
    is_repository,
    model_directory,
    read_config,
    weight_files,
)
from .models.architectures import (
    architecture_of,
    check_end_tokens,
    check_types,
    explicit_fields,
    model_classes,
)
from .models.fingerprint import fingerprint
from .models.streams import Streams
from .options import checked
from .stream_config import StreamConfig

Say = Callable[[str], None]


@dataclass
class SpeculativeModel:
    """A base model with at most one adapter.

    ``mlx_lm``'s functions take it as the model that it holds, since calls and other attributes are
    the model's. They decode plainly, LoRA included, and without streams.

    Attributes:
        model: the mlx-lm model, the adapter's LoRA included; ``base`` is without, never changed.
        config: the base's ``config.json``; ``path`` is its directory.
        adapter: the mounted adapter, or ``None``; ``streams`` are its streams, if it has any.
        held: whether the base's weights are packed or expanded in memory, and why.
        ranks: the processes that run the model together; ``None``: it is this one alone.
        head: the mounted draft head, which guesses where there are no streams, or ``None``.
        compiles: whether steps are compiled; ``None``: where that pays, see ``device.compiles``.
        reproducible: whether texts are the same however often they are written, see ``load``.
    """

    model: nn.Module
    config: dict[str, Any]
    path: Path
    adapter: Adapter | None = None
    streams: Streams | None = None
    held: HeldWeights | None = None
    ranks: Ranks | None = None
    head: MountedHead | None = None
    compiles: bool | None = None
    reproducible: bool = False
    head_watch: HeadWatch | None = field(default=None, init=False, repr=False, compare=False)
    base: nn.Module = field(init=False, repr=False, compare=False)
    _others: "dict[tuple[Path, int], SpeculativeModel]" = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # models of other adapters, by directory and the time of its last change
    _is_other: bool = field(default=False, init=False, repr=False, compare=False)
    _compiled: CompiledSteps | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.base = self.model

    def __call__(
        self, inputs: mx.array, cache: list[Any] | None = None, **further: Any
    ) -> mx.array:
        return self.model(inputs, cache=cache, **further)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "model":  # "model": this object is still being made
            raise AttributeError(f"a SpeculativeModel has no attribute {name!r}")
        return getattr(self.model, name)

    @property
    def mode(self) -> Mode:
        """The mounted adapter's mode; ``lossless`` without streams."""
        return self.streams.config.mode if self.streams else "lossless"

    @property
    def guessing(self) -> StreamConfig | HeadConfig | None:
        """The configuration of what guesses in the target's pass: the streams, or the head."""
        if self.streams is not None:
            return self.streams.config
        return None if self.head is None else self.head.config

    @property
    def decides(self) -> bool:
        """Whether this process decides what is drafted: it is alone, or rank 0."""
        return self.ranks is None or self.ranks.is_first

    @property
    def prompt_template(self) -> str | None:
        return self.streams.config.prompt_template if self.streams else None

    @property
    def base_fingerprint(self) -> str:
        return fingerprint(self.config)

    @cached_property
    def layout(self) -> Layout:
        """What other adapters must share for their texts to go through one pass."""
        return layout_of(self.model, self.streams)

    @property
    def compiled(self) -> CompiledSteps | None:
        """The traces of this model's steps; ``None`` where steps are not compiled."""
        if not (device.compiles() if self.compiles is None else self.compiles):
            return None
        steps = self._compiled
        if steps is None or steps.model is not self.model or steps.streams is not self.streams:
            traced_at = 1 if self.reproducible else TRACED_AT
            self._compiled = steps = CompiledSteps(self.model, self.streams, traced_at)
        return steps

    def swap_adapter(self, directory: str | Path | None) -> None:
        """Replace the mounted adapter by the one in ``directory``; ``None`` leaves the bare base.

        If there is no such directory, it may be the name of an adapter. A ``UserError`` says that
        it is none for this base; the present one then stays.
        """
        if self._is_other:
            raise UserError(
                "swap_adapter was called on a model of with_adapter(..), expected the model that "
                "was loaded"
            )
        model, adapter, streams = self.base, None, None
        if directory is not None:
            path = Path(adapter_directory(directory))
            if self.ranks is not None:
                _check_divided(path, self.ranks)
            adapter = read_adapter(path, self.base, self.config, full=True)
            if self.head is not None and adapter.stream_config is not None:
                raise UserError(
                    f"the adapter {path} has streams and a {self.head.config.kind} head is "
                    "mounted, expected one of them"
                )
            model, adapter, streams = mounted(self.base, adapter)
        self.model, self.adapter, self.streams = model, adapter, streams
        vars(self).pop("layout", None)

    def with_adapter(self, directory: str | Path) -> "SpeculativeModel":
        """Return a model with another adapter, as of ``swap_adapter``, around the same weights.

        It stays in memory and needs only the adapter's bytes; it is made again if the directory has
        changed. Every function accepts it, so tasks with different adapters need not
        take turns.
        """
        path = Path(adapter_directory(directory)).resolve()
        config = path / ADAPTER_CONFIG
        key = path, config.stat().st_mtime_ns if config.exists() else 0
        if key not in self._others:
            other = replace(self, model=self.base, adapter=None, streams=None)
            other.swap_adapter(path)
            other._is_other = True
            for outdated in [known for known in self._others if known[0] == path]:
                del self._others[outdated]
            self._others[key] = other
        return self._others[key]

    def fits(self, directory: str | Path) -> bool:
        """Whether a directory is an adapter that can be mounted here."""
        try:
            read_adapter(directory, self.base, self.config, full=True)
        except UserError:
            return False
        return True

    def mount_head(self, head: str | Path | MountedHead | None) -> None:
        """Mount a draft head in place of the present one; ``None`` leaves none.

        It is the directory of a published EAGLE-3 head for this base, its repository, ``auto``, or
        a head of one's own.
        """
        if head is None:
            self.head = self.head_watch = None
            return
        if self.ranks is not None:
            raise UserError(
                "a draft head was given and several processes run the model, expected one"
            )
        if self.streams is not None:
            raise UserError("a draft head was given and streams are mounted, expected one of them")
        where = ""
        if isinstance(head, str | Path):
            path = head_directory(head, self.path, self.config)
            where = f" {repository_of(path) or path}{_made_for(path)}"
            head = read_head(path, self.model, self.config)
        self.head = head
        self.head_watch = HeadWatch(f"{head.config.kind} head{where}")


def _made_for(head: Path) -> str:
    """What a head states about its model, as ``speculators``' heads do."""
    values: Any = head_config(head).get("speculators_config")
    verifier = values.get("verifier") if isinstance(values, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return f", made for {Path(name).name}," if isinstance(name, str) and name else ""


def _check_divided(directory: Path, ranks: Ranks) -> None:
    """Check that an adapter is the same on all ranks, and one that can be divided."""
    description = describe(directory)
    files = sorted(file for file in description.path.iterdir() if file.is_file())
    ranks.agree(f"the digest of {directory}", sampled_digest(files))
    kind = description.config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise UserError(
            f"{description.config_path}: fine_tune_type is {shown(kind)}, expected 'lora' "
            "where several processes run the model"
        )
    config = description.stream_config
    if config is not None and config.stream_keys:
        raise UserError(
            f"{description.config_path}: stream_keys is {config.stream_keys}, expected 0 where "
            "several processes run the model, since each sees a part of the heads"
        )


@overload
def load(  # type: ignore[overload-overlap]
    path_or_hf_repo: str | Path, *further: Any, return_config: Literal[True], **named: Any
) -> tuple[SpeculativeModel, TokenizerWrapper, dict[str, Any]]: ...


@overload
def load(
    path_or_hf_repo: str | Path, *further: Any, **named: Any
) -> tuple[SpeculativeModel, TokenizerWrapper]: ...


@checked()  # type: ignore[misc]
def load(
    path_or_hf_repo: str | Path,
    tokenizer_config: dict[str, Any] | None = None,
    model_config: dict[str, Any] | None = None,
    adapter_path: str | Path | None = None,
    lazy: bool = False,
    return_config: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    *,
    weights: str = "auto",
    group: mx.distributed.Group | None = None,
    draft_head: str | Path | None = None,
    compiled: bool | None = None,
    reproducible: bool = False,
) -> tuple[Any, ...]:
    """Load a base model in MLX format and, optionally, an adapter directory.

    Args:
        path_or_hf_repo: a local directory or a Hugging Face repository.
        tokenizer_config: further arguments for the tokenizer.
        model_config: fields that replace those of the model's ``config.json``.
        adapter_path: an adapter directory, or else the name of a bundled adapter or of one's own.
        lazy: read weights when they are first used, as in mlx_lm.
        return_config: also return the configuration as mlx_lm completes it.
        revision: a branch, a tag or a commit of the repository.
        trust_remote_code: refused; no code that comes with a model is run here.
        weights: how to hold quantized weights in memory: ``packed``, ``expanded``, or ``auto`` for
            whichever runs faster on this machine.
        group: from ``mx.distributed.init()``, of processes that run the same program: each holds
            its part of the model, and what rank 0 decides all do.
        draft_head: directory or repository of a published EAGLE-3 head for the base; ``auto``: that
            of ``drafting.published_heads``.
        compiled: whether steps are compiled; ``None``: where that pays.
        reproducible: let no timing and no earlier text decide how much is drafted and how weights
            are kept, and build all steps of a shape in the same way: in 16 bit, too, a prompt (or a
            batch of them) then has the same text on this machine however often it is written.

    Raises:
        UserError: the model or the adapter cannot be used; one sentence says why.
    """
    if trust_remote_code:
        raise UserError(
            "trust_remote_code is True, but no code that comes with a model is run here, "
            "expected False"
        )
    ranks = None if group is None else ranks_of(group)
    path = model_directory(path_or_hf_repo, revision)
    if adapter_path is not None:  # what is soon found wrong is found before weights are read
        describe(adapter_directory(adapter_path))
    if draft_head is not None:
        draft_head = head_directory(draft_head, path, read_config(path, model_config))
        head_files(draft_head)
    model, full_config = read_model(path, model_config=model_config)
    config = read_config(path, model_config)
    tokenizer = read_tokenizer(path, full_config, tokenizer_config)
    if ranks is None:
        model, held = hold_weights(model, weights, measures=not reproducible)
    else:
        check_divisible(model, config, ranks)
        ranks.agree(
            f"the digest of {path}", sampled_digest([path / "config.json", *weight_files(path)])
        )
        # Rank 0 measures which form is faster; the others follow it.
        choice = weights if ranks.is_first else ranks.receive("weights")
        model, held = hold_weights(model, choice, measures=not reproducible)
        if ranks.is_first:
            ranks.send("weights", held.form)
        shard(model, ranks)
    if not lazy:
        _check_finite(path, model)
    speculative = SpeculativeModel(
        *(model, config, path),
        held=held,
        ranks=ranks,
        compiles=compiled,
        reproducible=reproducible,
    )
    if adapter_path is not None:
        speculative.swap_adapter(adapter_path)
    speculative.mount_head(draft_head)
    return (speculative, tokenizer, full_config) if return_config else (speculative, tokenizer)


def load_draft_model(path_or_hf_repo: str | Path, tokenizer: TokenizerWrapper) -> SpeculativeModel:
    """Load a model that drafts for another one, whose tokens it must share."""
    draft, its_tokenizer = load(path_or_hf_repo)
    theirs, ours = tokenizer.get_vocab(), its_tokenizer.get_vocab()
    if theirs != ours:
        differing = sorted(theirs.items() ^ ours.items(), key=lambda pair: pair[1])
        raise UserError(
            f"the draft model {path_or_hf_repo} has another vocabulary: token {differing[0][1]} is "
            "not the same, expected the model's own tokens"
        )
    return draft


# The base -----------------------------------------------------------------------------------


def head_directory(
    draft_head: str | Path, model: Path, config: Mapping[str, Any], say: Say = lambda _: None
) -> Path:
    """Find the directory of a draft head; a Hugging Face repository is downloaded.

    ``auto`` is the repository of the head that is published for the model.
    """
    if os.path.isdir(draft_head) or not is_repository(text := str(draft_head), "auto"):
        return Path(draft_head)
    if text == "auto":
        head = head_for(model, config)
        if head is None:
            sentence = f"no published EAGLE-3 head is known for {repository_of(model) or model}"
            for other in heads_of_size(config):
                sentence += f"; if it is {other.base}, whose sizes it has: {other.repository}"
            raise UserError(f"{sentence}, expected a head's directory or repository, not 'auto'")
        say(f"Draft head: {head}")
        text = head.repository
    directory = from_hub("the draft head", text, ["config.json", "*.safetensors"])
    if any(directory.glob("*.safetensors")):
        return directory
    if find_spec("torch") is None:  # said before a GB is downloaded
        raise UserError(
            f"the draft head {text} is in torch's files, which need torch: "
            "pip install 'specstream-mlx[torch]'"
        )
    return from_hub("the draft head", text, ["config.json", "*.bin"])


def read_model(
    directory: Path, to_run: bool = True, model_config: Mapping[str, Any] | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Read a model and its configuration as mlx-lm completes it; weights are read when first used.

    If it is going to be run, a model of an untested architecture must pass ``check_tree``, which
    reads all of its weights.
    """
    path = directory / "config.json"
    config, stored = read_config(directory, model_config), read_json(path)
    changes = {name: v for name, v in config.items() if name not in stored or stored[name] != v}
    fields = {**changes, **explicit_fields(config)}
    weight_files(directory)
    generation = directory / "generation_config.json"
    if os.path.lexists(generation):
        said = read_json(generation)
        with naming(generation):
            check_end_tokens(said)
    with naming(path):
        check_types(stored | fields, model_classes(config)[1])
    try:
        model, full_config = load_model(
            directory, lazy=True, model_config=fields, get_model_classes=model_classes
        )
    except Exception as error:  # a wrong field may raise any error in mlx-lm
        why = _field_at_fault(directory, stored | fields) or reason(error)
        raise UserError(f"{path} and the weights do not fit: {why}") from None
    _check_dtypes(directory, model)
    if to_run and not architecture_of(config["model_type"]).tested:
        with naming(path):
            check_tree(model, config)
    return model, full_config


def _field_at_fault(directory: Path, config: dict[str, Any]) -> str | None:
    """Find the field of a configuration that, at its default or negated, would fit the weights."""
    for each in dataclasses.fields(model_classes(config)[1]):
        value = config.get(each.name, each.default)
        other = not value if isinstance(value, bool) else each.default
        if other == value or other is dataclasses.MISSING:
            continue
        with suppress(Exception):
            changed = {**config, each.name: other}
            load_model(directory, True, True, changed, model_classes)
            return f"{each.name} is {shown(value)}, with {other} they do"
    return None


def read_tokenizer(
    directory: Path, config: dict[str, Any], extra: dict[str, Any] | None = None
) -> TokenizerWrapper:
    """Read the tokenizer of a model with ``config``; no code that came with it is run."""
    arguments, end = {"trust_remote_code": False}, (extra or {}).get("eos_token")
    if end is not None:  # transformers would add one that it does not know, which no model writes
        with tokenizer_files(directory):
            known = load_tokenizer(directory, arguments).get_vocab()
        if str(end) not in known:
            raise UserError(f"eos_token is {shown(end)}, expected one of the tokenizer's tokens")
    with tokenizer_files(directory):
        ends = config.get("eos_token_id")
        return load_tokenizer(directory, {**arguments, **(extra or {})}, eos_token_ids=ends)


def _check_dtypes(directory: Path, model: nn.Module) -> None:
    """Check that all weights have a floating-point dtype, except packed ones."""
    for path, module in model.named_modules():
        packed = any("scale" in name for name in module)
        affine = packed and getattr(module, "mode", None) == "affine"
        for name, tensor in module.items():
            if not isinstance(tensor, mx.array):
                continue
            fits = mx.issubdtype(tensor.dtype, mx.floating) or (packed and not affine)
            expected = "a floating-point one"
            if affine and name == "weight":
                fits, expected = tensor.dtype == mx.uint32, "uint32, since it has scales"
            if not fits:
                where = _origin(directory, f"{path}.{name}")
                raise UserError(f"{where} has dtype {tensor.dtype}, expected {expected}")


def _check_finite(directory: Path, model: nn.Module) -> None:
    """Evaluate a model's weights and check that none is NaN or infinite."""
    name = not_finite(dict(tree_flatten(model.parameters())))
    if name is not None:
        where = _origin(directory, name)
        raise UserError(f"{where} holds NaN or infinity, or its scales do, expected finite numbers")


def _origin(directory: Path, name: str) -> str:
    """Name a tensor with its file, if it has the same name there, else with the directory."""
    files = (file for file in weight_files(directory) if name in tensor_headers(file))
    return f"{next(files, directory)}: {name}"
