"""Help for MLX's CPU backend: fewer and fuller operations, bit for bit the same values."""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models.rope_utils import Llama3RoPE
from mlx_lm.tuner.lora import LoRALinear

from . import device, few_rows, user_cache

# Products ---------------------------------------------------------------------------------------

# OpenBLAS's AVX-512 kernels compute 16 rows at a time and take longer for 12 of them than for 16,
# and trees have any number of rows. So products may be padded with rows of zeros, where that is
# faster by a measurement on one of the model's own products, which is stored in the user's cache.
# LoRA layers take two operations fewer than mlx-lm's, each of which costs some microseconds here.

Kinds = dict[type[nn.Module], type[nn.Module]]
"""Classes of modules, each with the class that replaces it."""

BLOCK = 16  # number of rows that this BLAS multiplies at a time
_PROBED_ROWS = 12
_WORTH = 0.85  # of the time of ``_PROBED_ROWS`` rows, for a full block
_FEW = 3  # rows in an unfinished block that cost less than a full one
_ROUNDS, _REPEATS = 5, 8


class BlockedLinear(nn.Linear):
    """A linear layer whose rows are filled up to full blocks."""

    def __call__(self, x: mx.array) -> mx.array:
        return in_blocks(super().__call__, x)


class BlockedEmbedding(nn.Embedding):
    """Token embeddings that fill rows up to full blocks when used as a tied LM head."""

    def as_linear(self, x: mx.array) -> mx.array:
        return in_blocks(super().as_linear, x)


class AddedLoRALinear(LoRALinear):
    """mlx-lm's LoRA layer without dropout, whose second product scales and adds."""

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.linear(x), x @ self.lora_a, self.lora_b, alpha=self.scale)


BLOCKED: Kinds = {nn.Linear: BlockedLinear, nn.Embedding: BlockedEmbedding}
ADDED: Kinds = {LoRALinear: AddedLoRALinear}
_STOCK = [
    {ours: stock for stock, ours in kinds.items()} for kinds in (ADDED, BLOCKED, few_rows.KINDS)
]


def exchange(model: nn.Module, kinds: Kinds) -> list[tuple[str, nn.Module]]:
    """Replace the modules of ``kinds``, tensors included; returns the replaced ones by name."""
    modules = [(name, module) for name, module in model.named_modules() if type(module) in kinds]
    others = []
    for name, module in modules:
        kind = kinds[type(module)]
        made = kind.__new__(kind)  # without mlx's constructor, which would draw weights
        nn.Module.__init__(made)
        vars(made).update(vars(module))
        dict.update(made, module)
        others.append((name, made))
    model.update_modules(tree_unflatten(others))
    return modules


def in_blocks(product: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
    """Apply ``product`` to (.., in), its rows filled up to a multiple of ``BLOCK``."""
    rows = x.size // x.shape[-1]
    if rows % BLOCK <= _FEW:
        return product(x)
    filling = mx.zeros((-rows % BLOCK, x.shape[-1]), x.dtype)
    filled = mx.concatenate([x.reshape(rows, -1), filling])
    return product(filled)[:rows].reshape(*x.shape[:-1], -1)


@contextmanager
def stock_modules(model: nn.Module) -> Iterator[None]:
    """Within the context, let all layers of ``model`` compute as those of mlx and mlx_lm."""
    ours = [exchange(model, kinds) for kinds in _STOCK]  # LoRA first: it holds linear layers
    try:
        yield
    finally:
        for modules in reversed(ours):
            model.update_modules(tree_unflatten(modules))


def blocks_pay(layer: nn.Linear, measure_again: bool = False) -> bool:
    """Tell whether full blocks are faster for a model's products here; only on a CPU."""
    if device.backend() != "cpu":
        return False
    facts, weight = device.describe(), layer.weight
    shape = "x".join(map(str, weight.shape))
    key = ", ".join([facts["cpu"], facts["mlx"], facts["blas"], str(weight.dtype), shape])

    def restore(values: Any) -> tuple[float, float]:
        some, block = map(float, values)
        return some, block

    file = user_cache.directory() / "row-blocks.json"
    some, block = user_cache.measured(file, key, lambda: probe(weight), restore, measure_again)
    return block < _WORTH * some


def probe(weight: mx.array) -> tuple[float, float]:
    """Time a product with less than a full block of rows, and with a full one, in seconds."""
    mx.eval(weight)
    cases = [(lambda x: x @ weight.T, count) for count in (_PROBED_ROWS, BLOCK)]
    some, block = least_seconds(cases, weight.shape[1], weight.dtype)
    return some, block


def least_seconds(
    cases: Sequence[tuple[Callable[[mx.array], mx.array], int]], columns: int, dtype: mx.Dtype
) -> list[float]:
    """Time products on numbers of rows in turn: the least means of several in a row."""
    drawn = [mx.random.normal((count, columns), key=mx.random.key(0)) for _, count in cases]
    inputs = [rows.astype(dtype) for rows in drawn]
    mx.eval(inputs)
    seconds = [math.inf] * len(cases)
    for _ in range(_ROUNDS):
        for number, ((product, _), rows) in enumerate(zip(cases, inputs, strict=True)):
            mx.eval(product(rows))  # not counted
            start = time.perf_counter()
            for _ in range(_REPEATS):
                mx.eval(product(rows))
            mean = (time.perf_counter() - start) / _REPEATS
            seconds[number] = min(seconds[number], mean)
    return seconds


# Rotary embeddings: sines and cosines once a pass instead of twice in every layer ---------------

# ``mx.fast.rope`` is some twenty small operations here, nearly all of them for the angles, which
# are the same for queries and keys and in every layer whose rope has the same settings. On a GPU
# it is one kernel, and these tables are not used.

RopeAt = Callable[[nn.Module, mx.array, mx.array | int], mx.array]
"""``(rope, x, offset)`` -> x (sequences, heads, rows, d) rotated at consecutive positions from an
``offset`` on, or at one for each row (rows,)."""


class Rotations:
    """The angles of one pass, for all layers whose ropes have the settings of ``rope``."""

    def __init__(self, rope: nn.Module, rope_at: RopeAt):
        self._rope, self._rope_at = rope, rope_at
        self._pairs_lie_together = rope.traditional
        half = rope.dims // 2
        self._shape = (half, 2) if rope.traditional else (2, half)
        unit = [1.0, 0.0] * half if rope.traditional else [1.0] * half + [0.0] * half
        self._unit = mx.array(unit)
        self._cos_sin: tuple[mx.array, mx.array] | None = None

    def begin(self) -> None:
        self._cos_sin = None

    def rotate(self, x: mx.array, offset: mx.array | int) -> mx.array:
        """Rotate x (1, heads, rows, d) float32, whose rows have the same positions in a pass."""
        cos, sin = self._angles(x.shape[2], offset)
        pairs = x.reshape(*x.shape[:-1], *self._shape)
        swapped = pairs[..., ::-1] if self._pairs_lie_together else pairs[..., ::-1, :]
        return (pairs * cos + swapped * sin).reshape(x.shape)

    def _angles(self, count: int, offset: mx.array | int) -> tuple[mx.array, mx.array]:
        if self._cos_sin is None:
            units = mx.broadcast_to(self._unit, (1, 1, count, self._unit.size))
            turned = self._rope_at(self._rope, units, offset).reshape(count, *self._shape)
            axis = -1 if self._pairs_lie_together else -2
            cos, sin = mx.split(turned, 2, axis=axis)
            self._cos_sin = cos, mx.concatenate([-sin, sin], axis=axis)
        return self._cos_sin


def shared_rotations(ropes: Sequence[nn.Module], rope_at: RopeAt) -> list[Rotations | None]:
    """Return rotations for ropes, one for all of equal settings; ``None``: the rope itself."""
    if device.backend() != "cpu":
        return [None] * len(ropes)
    known: dict[Hashable, Rotations] = {}
    tables: list[Rotations | None] = []
    for rope in ropes:
        arrays = [np.array(array).tobytes() for array in rope.values()]  # Llama 3's frequencies
        plain = [getattr(rope, name, None) for name in ("dims", "traditional", "base", "scale")]
        settings = type(rope), *plain, *arrays
        has_pairs = type(rope) in (nn.RoPE, Llama3RoPE)
        tables.append(known.setdefault(settings, Rotations(rope, rope_at)) if has_pairs else None)
    return tables
