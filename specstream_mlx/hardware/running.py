"""How a model is run: on mlx_lm's stream, with wired weights, by generators that end in time."""

import atexit
from collections.abc import Generator
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar, cast
from weakref import WeakSet

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generation_stream as generation_stream
from mlx_lm.generate import wired_limit


def wired(model: nn.Module) -> AbstractContextManager[None]:
    """Wire a model's weights within the context, as ``mlx_lm`` does."""
    return wired_limit(model, [cast(mx.Stream, generation_stream)])


Made = TypeVar("Made", bound=Generator[Any, None, None])

_unfinished = WeakSet[Generator[Any, None, None]]()


def closed_at_exit(generator: Made) -> Made:
    """Have a generator closed before the interpreter is taken apart, if nobody has until then.

    What it does at its end imports modules, computes and writes, which Python is past by then.
    """
    _unfinished.add(generator)
    return generator


@atexit.register
def _close() -> None:
    for generator in list(_unfinished):
        with suppress(ValueError):  # it runs in a thread that is still going
            generator.close()
