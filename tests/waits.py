"""Counts waits for the device: ``mx.eval``, methods that hand out values, numpy's conversions.

What has been waited for may be read freely; any other array that is read is a wait of its own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

READS = "item tolist __array__ __bool__ __int__ __float__ __index__ __iter__ __repr__".split()
_TWO_SIDED = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
OPERATORS = {f"__{side}{name}__" for name in _TWO_SIDED.split() for side in ("", "r", "i")}
OPERATORS |= {f"__{name}__" for name in "getitem setitem neg invert abs eq ne lt le gt ge".split()}
_NO_OPERATIONS = {"eval", "async_eval", "synchronize", "item", "tolist", "stream", "tracer"}


def operations() -> Iterator[tuple[Any, str, Any]]:
    """Functions and methods that take or return arrays: where each is, its name and itself."""
    for owner in (mx, mx.fast, mx.random, mx.linalg, mx.array):
        for name in dir(owner):
            make = getattr(owner, name)
            hidden = name in _NO_OPERATIONS or (name.startswith("_") and name not in OPERATORS)
            if callable(make) and not hidden and not isinstance(make, type):
                yield owner, name, make


class Waits:
    def __init__(self) -> None:
        self.count, self._known = 0, dict[int, mx.array]()

    def know(self, arrays: Any) -> None:
        """Count a wait for arrays, which may be read from then on."""
        self.count += 1
        self._known |= {id(array): array for array in arrays if isinstance(array, mx.array)}

    def watched(self, read: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], mx.array) and id(args[0]) not in self._known:
                self.know(args[:1])
            return read(*args, **kwargs)

        return call


@contextmanager
def counted_waits() -> Iterator[Waits]:
    waits, evaluate = Waits(), mx.eval

    def watched_eval(*arrays: Any) -> None:
        waits.know(array for _, array in tree_flatten(list(arrays)))
        evaluate(*arrays)

    with ExitStack() as stack:
        stack.enter_context(patch.object(mx, "eval", watched_eval))
        for owner, names in ((mx.array, READS), (np, ["array", "asarray"])):
            for name in names:
                watched = waits.watched(getattr(owner, name))
                stack.enter_context(patch.object(owner, name, watched))
        yield waits
