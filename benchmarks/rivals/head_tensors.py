"""The tensors of published draft heads, taken one by one, each with the shape it must have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from specstream_mlx import UserError
from specstream_mlx.drafting.eagle3 import draft_tokens


@dataclass
class Tensors:
    """The tensors of a head that are not taken yet, and what it must fit.

    Attributes:
        directory: of the head, for errors.
        arrays: its tensors by name.
        values: its ``config.json``; empty: it has none.
        target: the target's ``config.json``.
        dtype: of the target's hidden states, to which weights are converted.
    """

    directory: Path
    arrays: dict[str, mx.array]
    values: Mapping[str, Any]
    target: Mapping[str, Any]
    dtype: mx.Dtype

    @property
    def hidden_size(self) -> int:
        """The width h of the target's hidden states."""
        return self.target["hidden_size"]

    @property
    def vocab_size(self) -> int:
        """The target's number of tokens V."""
        return self.target["vocab_size"]

    def take(self, name: str, *shape: int) -> mx.array:
        """Take a tensor of weights, in the target's dtype.

        Raises:
            UserError: it is missing, or of another shape.
        """
        if name not in self.arrays:
            raise UserError(f"{self.directory} has no tensor {name}, expected one of shape {shape}")
        array = self.arrays.pop(name)
        if array.shape != shape:
            raise UserError(f"{self.directory}: {name} has shape {array.shape}, expected {shape}")
        return array.astype(self.dtype)

    def token_map(self, *names: str) -> mx.array | None:
        """Take the tokens that a head drafts, as vLLM has them for Medusa; ``None``: all."""
        ids = next((self.arrays.pop(name) for name in names if name in self.arrays), None)
        return None if ids is None else draft_tokens(self.directory, ids, self.vocab_size)

    def check_all_taken(self) -> None:
        """Check that no tensor is left over.

        Raises:
            UserError: one is, so the head computes something that is not known here.
        """
        if self.arrays:
            raise UserError(f"{self.directory} has the tensor {min(self.arrays)}, expected none")
