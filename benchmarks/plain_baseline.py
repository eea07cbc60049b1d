"""``mlx_lm`` on the bundled base as the baseline: on the weights that are fastest for it."""

from pathlib import Path
from typing import Any

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import SpeculativeModel, bundled, load
from specstream_mlx.hardware import device

from .speedup import packed_model, packed_over_expanded


class Bundled:
    """The bundled base for us and for mlx_lm.

    Attributes:
        model: ours; ``mount`` changes its adapter.
        tokenizer: of both.
    """

    model: SpeculativeModel
    tokenizer: TokenizerWrapper

    def __init__(self, max_tokens: int):
        """Load the base and, on the CPU, time mlx_lm on packed and on expanded weights."""
        on_cpu = device.backend() == "cpu"
        self.model, self.tokenizer = load(
            bundled.base_path(), weights="expanded" if on_cpu else "packed"
        )
        self._ratio = (
            packed_over_expanded(bundled.base_path(), self.model.model, self.tokenizer, max_tokens)
            if on_cpu
            else 1.0
        )
        self._reload = on_cpu and self._ratio > 1

    def mount(self, adapter: Path) -> nn.Module:
        """Mount ``adapter`` and return what mlx_lm is to run: the base with its LoRA, if any."""
        self.model.swap_adapter(adapter)
        if not self._reload:
            return self.model.model
        shared = self.model.mode == "shared"
        return packed_model(bundled.base_path(), adapter if shared else None)

    def facts(self) -> dict[str, Any]:
        """Where and on what is measured."""
        return device.describe() | {
            "generator": tasks.generator_hash(),
            "plain_weights": "packed" if self._reload or self._ratio == 1.0 else "expanded",
            "packed_over_expanded": round(self._ratio, 3),
        }
