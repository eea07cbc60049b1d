"""Timing single steps of several decoders that take turns behind random rows."""

import random
import time
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from specstream_mlx import DraftSettings
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.tree import DraftTree
from specstream_mlx.engine.verify.rule import VerifyRule

from .drift import without_drift

Name = TypeVar("Name", bound=Hashable)


def filled_caches(model: nn.Module, config: Mapping[str, Any], length: int) -> list[Any]:
    """A model's caches with ``length`` random rows, as in the attention of mlx-lm's Llama."""
    caches = make_caches(model, config)
    heads, size = config["num_key_value_heads"], model.layers[0].self_attn.rope.dims
    for cache in caches:
        rows = mx.random.normal((2, 1, heads, length, size))
        cache.update_and_fetch(*rows.astype(model.model.norm.weight.dtype))
        mx.eval(cache.state)
    return caches


def step_milliseconds(
    kinds: Mapping[Name, tuple[Decoder, DraftSettings]], nodes: int, runs: int
) -> dict[Name, float]:
    """Milliseconds of a step on a chain, by kind.

    Args:
        kinds: decoders, which may share their caches: nothing is committed.
        nodes: of the chain, the root among them.
        runs: timed steps of each kind, behind one that is not.
    """
    places = np.arange(nodes, dtype=np.int32)
    tree = DraftTree(places, places - 1, places)
    plans = {
        kind: settings.plans(None if decoder.streams is None else decoder.streams.config)(tree)
        for kind, (decoder, settings) in kinds.items()
    }
    timings: list[tuple[Name, float]] = []
    order = random.Random(0)
    for number in range(runs + 1):
        for kind in order.sample(list(kinds), len(kinds)):
            decoder = kinds[kind][0]
            began = time.perf_counter()
            [result] = decoder.step([plans[kind]], [VerifyRule()])
            mx.eval(result.arrays())
            if number:
                timings.append((kind, 1e3 * (time.perf_counter() - began)))
    return without_drift(timings)
