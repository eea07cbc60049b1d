"""A base model with an adapter mounted, and how both are loaded."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .adapters.files import Adapter, mount, read_adapter
from .adapters.lora import unmount
from .base_model import model_directory, read_config, read_model, read_tokenizer
from .config import Mode
from .hardware.weights import HeldWeights, hold_weights
from .models.fingerprint import fingerprint
from .models.streams import Streams


@dataclass
class SpeculativeModel:
    """A base model with at most one adapter mounted.

    Attributes:
        model: the mlx-lm model.
        config: the base's ``config.json``.
        path: where the base was loaded from.
        adapter: what is mounted, if anything.
        streams: the mounted adapter's streams, if it has any.
        held: how the base's weights are held.
        learned: see ``tuning.tuned_drafting``.
    """

    model: nn.Module
    config: dict[str, Any]
    path: Path
    adapter: Adapter | None = None
    streams: Streams | None = None
    held: HeldWeights | None = None
    learned: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def mode(self) -> Mode:
        """The mounted adapter's mode; ``lossless`` without streams."""
        return self.streams.config.mode if self.streams else "lossless"

    @property
    def prompt_template(self) -> str | None:
        """What the mounted adapter puts around the user's raw text; see ``chat_prompt``."""
        return self.streams.config.prompt_template if self.streams else None

    def swap_adapter(self, directory: str | Path | None) -> None:
        """Mount the adapter at ``directory`` instead of the present one; ``None``: the bare base.

        Raises:
            AdapterError: the directory does not fit; the present adapter then stays. Where
                mounting itself fails, the bare base is left.
        """
        if directory is None:
            unmount(self.model)
            self.adapter = self.streams = None
            return
        adapter = read_adapter(directory, self.model, self.config)
        previous, self.adapter, self.streams = self.adapter, None, None
        try:
            self.streams = mount(self.model, adapter, previous)
        except BaseException:  # an interrupt too must not leave another adapter's LoRA behind
            unmount(self.model)
            raise
        self.adapter = adapter

    @property
    def base_fingerprint(self) -> str:
        """See ``fingerprint.fingerprint``."""
        return fingerprint(self.config)


def load(
    path_or_hf_repo: str | Path,
    tokenizer_config: dict[str, Any] | None = None,
    adapter_path: str | Path | None = None,
    lazy: bool = False,
    weights: str = "auto",
) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load a base model in MLX format and, optionally, an adapter directory.

    Args:
        path_or_hf_repo: a local directory or a Hugging Face repository.
        tokenizer_config: further arguments of the tokenizer.
        adapter_path: an adapter directory (see ``adapters``).
        lazy: as in mlx_lm; weights are read when first used.
        weights: ``packed``, ``expanded``, or ``auto`` for what runs faster here (see
            ``weight_policy``).

    Raises:
        UserError: the model or the adapter cannot be used; one sentence says why.
    """
    path = model_directory(path_or_hf_repo)
    model, full_config = read_model(path)
    model, held = hold_weights(model, weights)
    if not lazy:
        mx.eval(model.parameters())
    tokenizer = read_tokenizer(path, full_config, tokenizer_config)
    speculative = SpeculativeModel(model, read_config(path), path, held=held)
    if adapter_path is not None:
        speculative.swap_adapter(adapter_path)
    return speculative, tokenizer
