"""Hidden states of a base, kept from one epoch to the next.

In lossless mode, and under a draft head, the base does not change. So it, or its layers below the
streams, most of a step's arithmetic, needs to read each sequence of the data once.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specstream_mlx.files import staged_file
from specstream_mlx.train.items import Item

from .losses import Batch

_STATES = "states"


class KeptHidden:
    """Hidden states by sequence, in the memory of the host, or in files if there is a directory.

    Args:
        compute: function of tokens (B, T), padded on the right, that returns the states (B, T, h)
            of a model that does not change.
        dtype: that they are kept in; ``None``: the computed one.
        directory: where they outlive a run, in a file for each sequence, which each batch reads.
        model: text that tells models apart, of a directory for several.
    """

    def __init__(
        self,
        compute: Callable[[Tensor], Tensor],
        *,
        dtype: torch.dtype | None = None,
        directory: Path | None = None,
        model: str = "",
    ) -> None:
        self._compute, self._dtype, self._directory, self._model = compute, dtype, directory, model
        self._states: dict[tuple[int, ...], Tensor] = {}

    def of(self, items: Sequence[Item], batch: Batch) -> Tensor:
        """The states (B, T, h), 0 behind a sequence's end.

        Args:
            items: B sequences.
            batch: the same, collated.
        """
        keys = [tuple(item.tokens) for item in items]
        found = [self._read(key) for key in keys]
        missing = [row for row, states in enumerate(found) if states is None]
        if missing:
            with torch.no_grad():
                hidden = self._compute(batch.tokens[missing])
            for row, states in zip(missing, hidden, strict=True):
                own = states[: len(keys[row])].to("cpu", self._dtype, copy=True)
                self._keep(keys[row], own)
                found[row] = own
        padded = torch.nn.utils.rnn.pad_sequence(cast(list[Tensor], found), batch_first=True)
        return padded.to(batch.tokens.device)

    def _read(self, key: tuple[int, ...]) -> Tensor | None:
        """The states of a sequence, or ``None``."""
        if self._directory is None:
            return self._states.get(key)
        path = self._path(self._directory, key)
        return load_file(path)[_STATES] if path.exists() else None

    def _keep(self, key: tuple[int, ...], states: Tensor) -> None:
        if self._directory is None:
            self._states[key] = states
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        with staged_file(self._path(self._directory, key)) as scratch:
            save_file({_STATES: states}, scratch)

    def _path(self, directory: Path, key: tuple[int, ...]) -> Path:
        """The file of a sequence, named by all that its states depend on."""
        named = hashlib.sha256(f"{self._model} {self._dtype} ".encode())
        named.update(np.array(key, np.int64).tobytes())
        return directory / f"{named.hexdigest()[:32]}.safetensors"
