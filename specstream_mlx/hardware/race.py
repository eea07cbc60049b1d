"""A race of the kernel for few rows with MLX's own, in a process of its own with a time limit.

A kernel may crash, hang or compute wrongly on a chip that nobody has tried. Then, as before any
race, MLX's own kernels compute all products.
"""

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

from . import device, few_rows
from .few_rows import OUTPUTS, ROWS, Product, Times

LIMIT = 300.0  # seconds of a whole race
COMMAND = (sys.executable, "-m", __name__)

# Of 4 bits in groups of 64, in bfloat16: Qwen3-8B's, Llama-3.2-3B's, SmolLM2-135M's.
USUAL = [
    Product(outputs, inputs, 4, 64, "bfloat16")
    for inputs, all_outputs in (
        *((4096, (1024, 4096, 12288, 151936)), (12288, (4096,))),
        *((3072, (1024, 3072, 8192, 128256)), (8192, (3072,))),
        *((576, (192, 576, 1536, 49152)), (1536, (576,))),
    )
    for outputs in all_outputs
]

_TOLERANCE = {"bfloat16": 2**-7, "float16": 2**-10, "float32": 1e-5}  # of the largest value
_WORTH = 0.95  # of MLX's time
_ROUNDS = 5
_COLD = 1 << 27  # bytes of weights in a round, more than caches hold
_MOST_COPIES = 64


def products_of(model: Any) -> list[Product]:
    """List the different products of a model that the kernel can compute."""
    layers = [module for module in model.modules() if type(module) in few_rows.KINDS]
    return sorted({product for layer in layers if (product := few_rows.product_of(layer))}, key=str)


def race(products: Sequence[Product], limit: float | None = None) -> str:
    """Let the kernel race with MLX's own and keep the verdict; returns it as a sentence."""
    if (backend := device.backend()) != "metal":
        return f"there is no Metal here: MLX runs on {backend}, with its own kernels alone"
    # What a machine would find that did not survive the race.
    few_rows.store({}, "the last race did not end, so MLX's own kernels compute all products")
    times, failure = _run(products, LIMIT if limit is None else limit)
    if failure is None:
        races = [race for each in times.values() for race in each.values()]
        won = [stock / ours for outputs, stock, ours in races if outputs]
        said = f"the kernel for 2 to 16 rows won {len(won)} of {len(races)} races"
        if won:
            said += f", being {min(won):.2f} to {max(won):.2f} times as fast as MLX's own"
    else:
        said = f"the race failed ({failure}), so MLX's own kernels compute all products"
    few_rows.store(times, said)
    return said


def _run(products: Sequence[Product], limit: float) -> tuple[dict[str, Times], str | None]:
    """Run the race in another process; returns its times, or none and what went wrong."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        # In files, since a process that hangs in the GPU may keep pipes open even if killed.
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=out, stderr=error, text=True
        )
        try:
            with suppress(BrokenPipeError):
                process.communicate(json.dumps(list(map(asdict, products))), limit)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            return {}, f"it had not ended after {limit:.0f} s"
        except BaseException:
            process.kill()
            raise
        out.seek(0)
        error.seek(0)
        if (code := process.returncode) != 0:
            last = (error.read().strip().splitlines() or [""])[-1]
            with suppress(ValueError):
                last = last or signal.Signals(-code).name
            return {}, last or f"exit code {code}"
        try:
            times = few_rows.restored(json.load(out))
        except few_rows.DAMAGED:
            return {}, "its result cannot be read"
    if times.keys() != set(map(str, products)):
        return {}, "it has left out products"
    return times, None


def main() -> None:
    """Race the products on standard input; times go to standard output, see ``few_rows.Times``."""
    products = [Product(**fields) for fields in json.load(sys.stdin)]
    print(json.dumps({str(product): times_of(product) for product in products}))


def times_of(product: Product) -> Times:
    """Compare all values of a product by both kernels, then their times."""
    size = product.outputs * product.inputs * product.bits // 8
    copies = [_layer(product, number) for number in range(min(_MOST_COPIES, max(1, _COLD // size)))]
    x = mx.random.normal((max(ROWS), product.inputs), key=mx.random.key(0))
    x = x.astype(product.mlx_dtype)
    _compare(product, x, copies[0])
    return {rows: _raced(x[:rows], copies) for rows in ROWS}


def _layer(product: Product, number: int) -> Any:
    """Make a layer of random weights, without expanded ones, which may not fit into memory."""
    keys = mx.random.split(mx.random.key(number), 3)
    words = product.inputs * product.bits // 32
    weight = mx.random.randint(0, 1 << 16, (product.outputs, 2 * words), mx.uint16, key=keys[0])
    weight = weight.view(mx.uint32)
    shape = product.outputs, product.inputs // product.group_size
    scales = mx.random.uniform(0.5, 1.5, shape, key=keys[1]) / 2**product.bits
    biases = -scales * mx.random.uniform(0.0, 2**product.bits, shape, key=keys[2])
    scales, biases = (array.astype(product.mlx_dtype) for array in (scales, biases))
    mx.eval(weight, scales, biases)
    return SimpleNamespace(
        weight=weight,
        scales=scales,
        biases=biases,
        bits=product.bits,
        group_size=product.group_size,
        mode="affine",
    )


def _stock(x: mx.array, layer: Any) -> mx.array:
    kind = {"group_size": layer.group_size, "bits": layer.bits}
    return mx.quantized_matmul(x, layer.weight, layer.scales, layer.biases, **kind)


def _compare(product: Product, x: mx.array, layer: Any) -> None:
    """Check all values by the kernel, and that those of a row are the same beside any others."""
    least = None
    for rows in ROWS:
        expected = _stock(x[:rows], layer).astype(mx.float32)
        most = _TOLERANCE[product.dtype] * mx.abs(expected).max()
        for outputs in OUTPUTS:
            found = few_rows.multiply(x[:rows], layer, outputs)
            least = found[: min(ROWS)] if least is None else least
            near = mx.max(mx.abs(found.astype(mx.float32) - expected)) <= most  # False for NaN
            if not (near and mx.array_equal(found[: min(ROWS)], least)):
                raise SystemExit(f"wrong values: {product}, {rows} rows, {outputs} outputs a lane")


def _raced(x: mx.array, copies: Sequence[Any]) -> tuple[int, float, float]:
    """Time both kernels in turn; ours with the best number of outputs a lane."""
    best = dict.fromkeys((0, *OUTPUTS), math.inf)
    for round_ in range(_ROUNDS + 1):
        for outputs in best:
            made = _products(x, copies, outputs)
            start = time.perf_counter()
            mx.eval(made)
            if round_:  # in the first one kernels are compiled
                best[outputs] = min(best[outputs], time.perf_counter() - start)
    stock, ours = best.pop(0), min(best.values())
    outputs = min(best, key=best.__getitem__) if ours < _WORTH * stock else 0
    return outputs, 1e3 * stock / len(copies), 1e3 * ours / len(copies)


def _products(x: mx.array, copies: Iterable[Any], outputs: int) -> list[mx.array]:
    if outputs:
        return [few_rows.multiply(x, layer, outputs) for layer in copies]
    return [_stock(x, layer) for layer in copies]


if __name__ == "__main__":
    main()
