"""What steps cost until they are timed, and which of them are.

A CPU's costs rise smoothly and hardly depend on the text's length: five sizes are timed, and what
lies between is interpolated. On a GPU they are steps: kernels change at some numbers of rows, and
every row reads the KV cache again. There the last number of rows on each step is timed, behind
texts of three lengths, and steps begin where the model of ``hardware.metal_cost`` predicts it.
"""

import math
import statistics
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..engine.draft_head import HeadConfig
from ..hardware import device
from ..hardware.apple_chips import Chip, chip_in, chips
from ..hardware.metal_cost import Bits, Shape, forward_ms, head_ms, layers_ms, step_ms
from ..loading.speculative_model import SpeculativeModel
from ..models.architectures import completed, head_size
from .proposer import MOST_NODES, MOST_ROWS, WIDTH
from .settings import Guessing

Place = Literal["plain", "none", "one node", "nodes", "head"]
"""The place where a step's streams guess: nowhere, in a pipelined plain step without drafts
(``plain``) or in one that verifies a tree (``none``); at the likeliest node (``one node``); or at
every node (``nodes``). Shared streams run in ``none`` too, but make no guesses. In ``head``
a draft head guesses after the accepted node."""

Points = dict[Place, tuple[tuple[int, float], ...]]
"""Ascending (nodes, seconds) by place."""

_EDGE = 1.05
"""By how much costs must differ from one number of rows to the next for a step to end there."""

_LENGTHS = (1024, 512), (8192, 4096), (math.inf, 16384)
"""Tokens in the KV cache up to which costs are taken for alike, and those of the prediction."""


@dataclass(frozen=True)
class TypicalCosts:
    """Costs of steps behind texts of some length that are believed until they are timed."""

    points: Points  # on a GPU of each number of rows
    sizes: tuple[int, ...]  # numbers of nodes that are timed
    longest: float = math.inf  # tokens in the KV cache up to which these are meant
    origin: str = ""  # what they were predicted for; empty: they are those of another machine
    rounds: int = 1  # of timings, at least
    seconds: float = math.inf  # that timed steps of one text may take

    def through(self, timed: Points, error: float) -> Points:
        """Scale predicted costs so that they pass through timed ones, by the log of their ratio.

        Ratios that differ by no more than ``error``, a timing's as a share of it, are drawn to
        their mean; between timed numbers of nodes they are interpolated.
        """
        usual = {place: dict(points) for place, points in self.points.items()}
        ratios = {
            place: [math.log(seconds / usual[place][n]) for n, seconds in points]
            for place, points in timed.items()
        }
        each = [ratio for place in ratios.values() for ratio in place]
        mean, variance = statistics.fmean(each), statistics.pvariance(each)
        believed = max(0.0, 1 - error**2 / variance) if variance else 0.0
        scaled: Points = {}
        for place, points in timed.items():
            known = [n for n, _ in points], [mean + believed * (r - mean) for r in ratios[place]]
            factors = np.exp(np.interp(list(usual[place]), *known)).tolist()
            pairs = zip(usual[place].items(), factors, strict=True)
            scaled[place] = tuple((n, seconds * factor) for (n, seconds), factor in pairs)
        return scaled


_SIZES = (1, 2, 4, 8, MOST_NODES)
_LINUX: dict[Place, tuple[float, ...]] = {  # relative costs, on 2 cores
    "plain": (1.0,),
    "none": (1.17, 1.35, 1.6, 1.9, 2.2),
    "one node": (1.9, 2.0, 2.1, 2.3, 2.7),
    "nodes": (1.25, 1.4, 1.7, 1.95, 2.5),
    "head": (1.9, 2.0, 2.1, 2.3, 2.7),
}
ON_CPU = (
    TypicalCosts({p: tuple(zip(_SIZES, c, strict=False)) for p, c in _LINUX.items()}, _SIZES),
)


def typical_costs(model: SpeculativeModel) -> tuple[TypicalCosts, ...]:
    """Return the costs that are typical of a model on this machine, by the text's length."""
    if device.backend() == "cpu":
        return ON_CPU
    packed = model.held is None or model.held.form == "packed"
    bits = (model.config.get("quantization") or {}).get("bits", 16) if packed else 16
    # A chip that is not listed, or another maker's GPU, is taken for the newest one.
    chip = chip_in(device.processor()) or chips()[-1]
    return on_gpu(chip, shape_of(model.config), bits, model.guessing)


def shape_of(config: dict[str, Any]) -> Shape:
    """Return the sizes of a ``config.json``; an MLP without a gate counts as one with it."""
    fields = completed(config)
    h, heads = fields["hidden_size"], fields["num_attention_heads"]
    return Shape(
        str(fields.get("model_type")),
        layers=fields["num_hidden_layers"],
        hidden=h,
        intermediate=fields.get("intermediate_size") or fields.get("ffn_dim") or 4 * h,
        heads=heads,
        kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=head_size(config),
        vocab=fields["vocab_size"],
    )


@cache
def on_gpu(chip: Chip, shape: Shape, bits: Bits, streams: Guessing) -> tuple[TypicalCosts, ...]:
    """Predict what steps cost on a chip, by the text's length."""
    by_length = []
    for longest, context in _LENGTHS:
        points = {
            place: tuple((n, 1e-3 * ms) for n, ms in enumerate(milliseconds, start=1))
            for place, milliseconds in predicted(chip, shape, bits, streams, context).items()
        }
        by_length.append((longest, points))
    # The same sizes at each length, so that one set of compiled steps serves all.
    sizes = {1, MOST_NODES}
    for _, points in by_length:
        for costs in points.values():
            pairs = pairwise(costs[:MOST_NODES])
            sizes |= {n for (n, a), (_, b) in pairs if max(a, b) > _EDGE * min(a, b)}
    origin = f"Apple {chip.name}"
    return tuple(
        TypicalCosts(points, tuple(sorted(sizes)), longest, origin, rounds=3, seconds=3.0)
        for longest, points in by_length
    )


def predicted(
    chip: Chip, shape: Shape, bits: Bits, streams: Guessing, context: int
) -> dict[Place, list[float]]:
    """Predict the milliseconds of steps of 1 to ``MOST_ROWS`` nodes, by place.

    ``context`` is the number of tokens in the KV cache.
    """
    case, rows = (chip, shape, bits), range(1, MOST_ROWS + 1)
    plain = [step_ms(*case, n, context) for n in rows]
    costs: dict[Place, list[float]] = {"plain": [forward_ms(*case, 1, context)], "none": plain}
    if streams is None:
        return costs
    count = streams.num_streams
    if isinstance(streams, HeadConfig):  # a layer and the head, as often as it guesses
        guess = layers_ms(*case, WIDTH, 1, context) + head_ms(*case, WIDTH)
        return costs | {"head": [ms + count * guess for ms in plain]}
    layers = streams.num_msa_layers
    if streams.mode == "shared":
        none = [step_ms(*case, n, context, layers, n * count) for n in rows]
        guessing = [step_ms(*case, n, context, layers, n * count, count) for n in rows]
        return {"none": none, "nodes": guessing}
    return costs | {"one node": [step_ms(*case, n, context, layers, count, count) for n in rows]}
