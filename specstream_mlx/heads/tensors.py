"""The tensors of a draft head's files, taken one by one, each with the shape that it must have."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..config import UserError


@dataclass(frozen=True)
class Target:
    """What a head must fit.

    Attributes:
        config: the target's ``config.json``.
        dtype: of its hidden states; a head's weights are converted to it.
    """

    config: Mapping[str, Any]
    dtype: mx.Dtype

    @property
    def hidden_size(self) -> int:
        """The width h of a hidden state."""
        return self.config["hidden_size"]

    @property
    def vocab_size(self) -> int:
        """The number of tokens V."""
        return self.config["vocab_size"]

    @property
    def num_layers(self) -> int:
        """The number of layers N."""
        return self.config["num_hidden_layers"]


class Tensors:
    """The tensors of a head, by name.

    Args:
        path: the directory, for errors.
        arrays: all tensors.
        values: the head's ``config.json``; empty: it has none.
        target: what the head must fit.
    """

    def __init__(
        self,
        path: Path,
        arrays: dict[str, mx.array],
        values: Mapping[str, Any],
        target: Target,
    ):
        self.path, self.values, self.target = path, values, target
        self._arrays = dict(arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that are left."""
        return iter(list(self._arrays))

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """Return the shape of a matrix.

        Raises:
            UserError: there is none of the name.
        """
        if name not in self._arrays:
            raise UserError(f"{self.path} has no tensor {name}, expected one")
        shape = self._arrays[name].shape
        if len(shape) != 2:
            raise UserError(f"{self.path}: {name} has shape {shape}, expected a matrix's")
        rows, columns = shape
        return rows, columns

    def take(self, name: str, *shape: int) -> mx.array:
        """Take a tensor of weights, in the target's dtype.

        Raises:
            UserError: it is missing, of another shape or not of floats.
        """
        if name not in self._arrays:
            raise UserError(f"{self.path} has no tensor {name}, expected one of shape {shape}")
        array = self._arrays.pop(name)
        if array.shape != shape:
            raise UserError(f"{self.path}: {name} has shape {array.shape}, expected {shape}")
        if not mx.issubdtype(array.dtype, mx.floating):
            raise UserError(f"{self.path}: {name} has dtype {array.dtype}, expected a float's")
        return array.astype(self.target.dtype)

    def take_if_any(self, name: str, *shape: int) -> mx.array | None:
        """Take a tensor of weights; ``None``: there is none of the name."""
        return self.take(name, *shape) if name in self._arrays else None

    def load(self, module: nn.Module, prefix: str) -> None:
        """Take the weights of a module, which are named by ``prefix`` and their names in it.

        Raises:
            UserError: one is missing, of another shape or not of floats.
        """
        weights = dict(tree_flatten(module.parameters()))
        shapes = {name: array.shape for name, array in weights.items()}
        taken = [(name, self.take(prefix + name, *shape)) for name, shape in shapes.items()]
        module.load_weights(taken)

    def check_value(self, name: str, value: Any, expected: Any) -> None:
        """Check a field of the head's configuration against the target's.

        Raises:
            UserError: they differ.
        """
        if value != expected:
            raise UserError(f"{self.path}: {name} is {value}, expected the model's {expected}")

    def take_integers(self, name: str) -> mx.array:
        """Take a tensor (n,) of integers or truth values, at least one, as int32.

        Raises:
            UserError: it has another form.
        """
        array = self._arrays.pop(name)
        if array.ndim != 1 or not array.size or mx.issubdtype(array.dtype, mx.floating):
            raise UserError(
                f"{self.path}: {name} is {array.dtype} of shape {array.shape}, expected a row of "
                "integers"
            )
        return array.astype(mx.int32)

    def drop(self, name: str) -> None:
        """Leave out a tensor that is known not to be used, if there is one."""
        self._arrays.pop(name, None)

    def check_all_taken(self, kind: str) -> None:
        """Check that no tensor is left over.

        Raises:
            UserError: one is, so the head computes something that is not known here.
        """
        left = sorted(self._arrays)
        if left:
            raise UserError(
                f"{self.path} has the tensor {left[0]}, expected none of that name in a {kind} head"
            )


def evaluated(modules: Sequence[nn.Module]) -> int:
    """Evaluate the weights of modules, and count them."""
    weights = [dict(tree_flatten(module.parameters())) for module in modules]
    mx.eval(weights)
    return sum(array.size for named in weights for array in named.values())


def take_token_map(tensors: Tensors, *names: str) -> mx.array | None:
    """Take the tokens that a head drafts, as vLLM has them for Medusa; ``None``: all.

    Raises:
        UserError: see ``draft_tokens``.
    """
    for name in names or ("token_map",):
        if name in tensors:
            ids = tensors.take_integers(name)
            return draft_tokens(tensors, name, ids, tensors.target.vocab_size)
    return None


def draft_tokens(tensors: Tensors, name: str, ids: mx.array, most: int) -> mx.array:
    """Check the tokens that a head drafts.

    Args:
        tensors: the head's, for the error.
        name: the tensor that the tokens come from.
        ids: (n,) token ids.
        most: the target's number of tokens.

    Raises:
        UserError: a token is not one of the target's, or comes twice.
    """
    values: Any = ids.tolist()
    if len(set(values)) < len(values) or min(values) < 0 or max(values) >= most:
        raise UserError(
            f"{tensors.path}: {name} does not name {len(values)} different tokens, expected some "
            f"of 0 to {most - 1}"
        )
    return ids
