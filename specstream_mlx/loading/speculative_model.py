"""``SpeculativeModel``: a base with at most one adapter or draft head, which change on it."""

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..adapters.description import ADAPTER_CONFIG, describe
from ..adapters.files import Adapter, mounted, read_adapter
from ..distributed.ranks import Ranks
from ..engine.compiled import TRACED_AT, CompiledSteps
from ..engine.draft_head import HeadConfig, HeadWatch, MountedHead
from ..engine.several_adapters import Layout, layout_of
from ..errors import Mode, UserError, shown
from ..files import real_path, sampled_digest
from ..hardware import device
from ..hardware.weights import HeldWeights
from ..heads.published_heads import repository_of
from ..heads.read_head import head_config, read_head
from ..models.fingerprint import fingerprint
from ..models.streams import Streams
from ..options import HEAD_OF_ONES_OWN
from ..stream_config import StreamConfig
from .model_paths import adapter_directory, head_directory


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
    _others: "dict[tuple[Path | None, int], SpeculativeModel]" = field(
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

    def with_adapter(self, directory: str | Path | None) -> "SpeculativeModel":
        """Return a model with another adapter, as of ``swap_adapter``, around the same weights.

        ``None`` is the bare base.
        It stays in memory and needs only the adapter's bytes; it is made again if the directory has
        changed. Every function accepts it, so tasks with different adapters need not
        take turns.
        """
        path, made = None, 0
        if directory is not None:
            path = real_path(adapter_directory(directory))
            config = path / ADAPTER_CONFIG
            made = config.stat().st_mtime_ns if os.path.exists(config) else 0
        key = path, made
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
        if not isinstance(head, str | Path):
            HEAD_OF_ONES_OWN.check("the draft head", head)
        else:
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
