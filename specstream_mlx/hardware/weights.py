"""Weights of a quantized model in memory: packed as in the file, or expanded once.

Packed weights take less memory and, where reading them is the bottleneck, less time. A backend
whose quantized product costs as much for every further row loses on the trees that are verified
here. The faster form on a machine is measured on one of the model's own products, and stored in the
user's cache.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal, TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import dequantize_model

from ..errors import UserError
from ..options import HELD
from . import device, few_rows, user_cache
from .cpu import BLOCKED, blocks_pay, exchange, least_seconds

Weights = Literal["packed", "expanded"]

PROBED_ROWS = (1, 9)  # plain decoding, and a draft of the default size
_WORTH = 0.9  # expanded weights must save a tenth of the time for their memory
_MEMORY_SHARE = 0.5  # of the machine's memory, for expanded weights at most


@dataclass(frozen=True)
class Probe:
    """Milliseconds of one of the model's products, packed and expanded, by ``PROBED_ROWS``."""

    shape: tuple[int, int]  # (out, in) of the weights
    packed_ms: tuple[float, ...]
    expanded_ms: tuple[float, ...]

    @property
    def faster(self) -> Weights:
        """The form that takes less time over all probed rows; packed if the two are close."""
        return "expanded" if sum(self.expanded_ms) < _WORTH * sum(self.packed_ms) else "packed"

    @property
    def sentence(self) -> str:
        times = zip(PROBED_ROWS, self.packed_ms, self.expanded_ms, strict=True)
        parts = [
            f"{rows} row{'s' * (rows > 1)} {packed:.2f} ms packed, {expanded:.2f} ms expanded"
            for rows, packed, expanded in times
        ]
        return f"a product of {self.shape[0]} x {self.shape[1]} takes for " + ", for ".join(parts)


@dataclass(frozen=True)
class HeldWeights:
    """A model's weights in memory: packed or expanded, as is a model that is not quantized."""

    form: Weights
    reason: str  # for this form, as a part of a sentence
    stored_bytes: int  # in the files
    held_bytes: int  # in memory
    stored_dtype: str  # of what is not packed, in the files, in which mlx_lm computes
    dtype: str  # of the same in memory
    row_blocks: bool = False  # whether products pad their rows, see ``cpu``
    few_rows: bool = False  # whether a kernel of ours may compute products of 2 to 16 rows


def hold_weights(
    model: nn.Module, choice: str = "auto", *, measure_again: bool = False, measures: bool = True
) -> tuple[nn.Module, HeldWeights]:
    """Leave quantized weights packed or expand them: what is faster here, or ``choice`` says.

    Without ``measures`` it is what is usually faster: on the CPU expanded, elsewhere packed.

    On the CPU everything but packed weights becomes float32, scales too, as half precision has no
    fast products there; elsewhere it keeps its precision. The quantized values stay the target.
    """
    HELD.check("weights", choice)
    stored, stored_dtype = parameter_bytes(model), _dtype(model)
    layer = _largest_product(model, nn.QuantizedLinear)
    form: Weights
    if layer is None:
        if choice == "packed":
            raise UserError("weights is 'packed', expected 'expanded': the model is not quantized")
        form, reason = "expanded", "the model is not quantized"
    elif choice != "auto":
        form, reason = "packed" if choice == "packed" else "expanded", "as asked"
    elif (expanded := _expanded_bytes(model)) > _MEMORY_SHARE * device.memory_bytes():
        form, reason = "packed", f"expanded they would take {expanded / 1e9:.1f} GB"
    elif not measures:
        form, reason = "expanded" if device.backend() == "cpu" else "packed", "not measured"
    else:
        probe = cached_probe(layer, measure_again)
        form, reason = probe.faster, probe.sentence
    # Before expanding, which rounds to the dtype of the scales.
    model.update(tree_map(_fast, model.parameters()))
    blocks, few = False, form == "packed" and measures and few_rows.has_won()
    if few:
        exchange(model, few_rows.KINDS)
    if form == "expanded":
        model = dequantize_model(model)
        dense = _largest_product(model, nn.Linear)
        blocks = measures and dense is not None and blocks_pay(dense, measure_again)
        if blocks:
            exchange(model, BLOCKED)
    return model, HeldWeights(
        form, reason, stored, parameter_bytes(model), stored_dtype, _dtype(model), blocks, few
    )


def run_probe(layer: nn.QuantizedLinear) -> Probe:
    """Time ``layer`` on ``PROBED_ROWS`` rows, packed and expanded in turn."""
    scales, biases = _fast(layer.scales), layer.get("biases")
    biases = None if biases is None else _fast(biases)
    kind = {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
    dense = _fast(mx.dequantize(layer.weight, scales, biases, **kind))
    mx.eval(dense, layer.weight, scales, biases)

    products = (
        lambda rows: mx.quantized_matmul(rows, layer.weight, scales, biases, **kind),
        lambda rows: rows @ dense.T,
    )
    cases = list(product(products, PROBED_ROWS))
    taken = [1e3 * seconds for seconds in least_seconds(cases, dense.shape[1], dense.dtype)]
    count = len(PROBED_ROWS)
    return Probe((dense.shape[0], dense.shape[1]), tuple(taken[:count]), tuple(taken[count:]))


def cached_probe(layer: nn.QuantizedLinear, measure_again: bool = False) -> Probe:
    """Call ``run_probe`` once for each machine, MLX version and kind of product, or again."""
    facts = device.describe()
    shape = layer.weight.shape[0], layer.weight.shape[1] * 32 // layer.bits  # once expanded
    parts = [facts["backend"], facts["cpu"], facts["mlx"], facts["blas"], layer.mode]
    parts += [f"{layer.bits} bits", f"groups of {layer.group_size}", str(layer.scales.dtype)]
    key = ", ".join([*parts, "x".join(map(str, shape))])

    def restore(values: Any) -> Probe:
        return Probe(*(tuple(values[name]) for name in ("shape", "packed_ms", "expanded_ms")))

    file = user_cache.directory() / "weight-policy.json"
    return user_cache.measured(file, key, lambda: asdict(run_probe(layer)), restore, measure_again)


Layer = TypeVar("Layer", nn.Linear, nn.QuantizedLinear)


def _largest_product(model: nn.Module, kind: type[Layer]) -> Layer | None:
    """Find the largest linear layer of ``kind`` in the decoder layers, the first of its size."""
    modules = [module for layer in model.layers for _, module in layer.named_modules()]
    layers = [module for module in modules if isinstance(module, kind)]
    return max(layers, key=lambda layer: layer.weight.nbytes, default=None)


def parameter_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in dict(tree_flatten(model.parameters())).values())


def _dtype(model: nn.Module) -> str:
    """Return the name of the dtype that most of a model's floating-point numbers have."""
    sizes: Counter[mx.Dtype] = Counter()
    for tensor in dict(tree_flatten(model.parameters())).values():
        if mx.issubdtype(tensor.dtype, mx.floating):
            sizes[tensor.dtype] += tensor.size
    return str(sizes.most_common(1)[0][0]).removeprefix("mlx.core.")


def _expanded_bytes(model: nn.Module) -> int:
    total = 0
    for module in model.modules():
        if "scales" in module:
            total += module.weight.size * 32 // module.bits
        else:
            total += sum(array.size for array in module.values() if isinstance(array, mx.array))
    return total * device.fast_dtype(mx.float16).size


def _fast(tensor: mx.array) -> mx.array:
    """Cast ``tensor`` to a dtype that is fast here; packed weights and exponents stay."""
    if not mx.issubdtype(tensor.dtype, mx.floating):
        return tensor
    return tensor.astype(device.fast_dtype(tensor.dtype))
