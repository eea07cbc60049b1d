"""Timings that others published, and what the cost model makes of them.

``fitted`` points set constants of ``metal_cost``; the others only check it.
"""

from dataclasses import dataclass, replace

from specstream_mlx.hardware.apple_chips import chip
from specstream_mlx.hardware.metal_cost import Bits, Shape, attention_ms, forward_ms, product_ms

_MLX = "https://github.com/ml-explore/mlx"
OLD_LIMIT = 10  # get_qmv_batch_limit of large products when these were measured; now 13


@dataclass(frozen=True)
class Point:
    """One published timing."""

    what: str  # chip and operation
    rows: int  # of the left side
    published: float  # milliseconds, or a multiple of one row's time
    predicted: float  # the same by the model
    fitted: bool  # whether a constant was set by it
    source: str  # where it was published

    @property
    def ratio(self) -> float:
        return self.predicted / self.published


MISTRAL = Shape("Mistral 7B", 32, 4096, 14336, 32, 8, 128, 32768)
LARGEST = Shape("70B", 80, 8192, 28672, 64, 8, 128, 250112)
"""mlx #3791 says D = 8192 and outputs of 1024, 8192, 28672 and 250112; 80 layers make it 70 B."""

PLAIN: tuple[tuple[str, Shape, Bits, int, float, str], ...] = (
    ("M3 Ultra", Shape("Llama 3.1 8B", 32, 4096, 14336, 32, 8, 128, 128256), 4, 100, 1e3 / 119.39,
     "https://github.com/raullenchai/Rapid-MLX/pull/586"),
    ("M3 Pro", Shape("Qwen3 4B", 36, 2560, 9728, 32, 8, 128, 151936), 4, 2048, 1e3 / 44.62,
     "https://github.com/ml-explore/mlx-lm/pull/1569"),
    ("M4 Pro", Shape("Qwen3 0.6B", 28, 1024, 3072, 16, 8, 128, 151936), 8, 100, 1e3 / 284.2,
     "https://github.com/waybarrios/vllm-mlx/issues/531"),
)  # fmt: skip
"""Plain decoding: chip, model, bits, tokens in the cache, milliseconds a token, source."""

_HEADS_8B, _HEADS_27B = (replace(MISTRAL, heads=32, kv_heads=n, head_dim=d)
                         for n, d in ((8, 128), (4, 256)))  # fmt: skip
_DSPARK = "https://github.com/ARahim3/mlx-dspark"

ATTENTION: tuple[tuple[str, Shape, int, dict[int, float], str], ...] = (
    ("M3 Max", _HEADS_8B, 16384, {8: 1.13, 12: 2.49, 16: 2.50}, "issues/3826"),
    ("M3 Max", _HEADS_8B, 32768, {8: 2.03, 12: 4.63, 16: 4.65}, "issues/3826"),
    ("M4 Pro", _HEADS_8B, 32768, {1: 0.82, 4: 1.64, 8: 3.05, 16: 4.7}, _DSPARK),
    ("M5 Max", _HEADS_8B, 16384, {8: 0.755, 12: 1.998, 16: 1.975, 24: 1.983}, "pull/3838"),
    ("M5 Max", _HEADS_8B, 32768, {8: 1.292, 12: 3.834, 16: 3.832}, "pull/3838"),
    ("M1 Ultra", _HEADS_27B, 100_000, {1: 2.3, 2: 5.39}, "issues/3837"),
)
"""Attention alone: chip, heads, keys, milliseconds by query rows, source."""


def points() -> list[Point]:
    m3_max, m4_pro, m5_max = (chip(f"M{name}") for name in ("3 Max", "4 Pro", "5 Max"))
    points = []

    def add(what: str, rows: int, ms: float, predicted: float, fitted: bool, source: str) -> None:
        source = source if source.startswith("https:") else f"{_MLX}/{source}"
        points.append(Point(what, rows, ms, predicted, fitted, source))

    table = {1: 0.129, 2: 0.129, 4: 0.165, 6: 0.263, 8: 0.323, 9: 0.405, 10: 0.508}
    for rows, ms in (table | {16: 0.509, 32: 0.513, 33: 1.002}).items():
        predicted, fitted = product_ms(m3_max, 4, rows, 5120, 17408, OLD_LIMIT), rows in (4, 6, 32)
        add("M3 Max, 5120 x 17408, 4 bits, ms", rows, ms, predicted, fitted, "pull/3863")
    for inputs, outputs, table, issue in (
        (4096, 24576, {2: 1.03, 3: 1.22, 4: 1.47, 6: 2.07, 8: 2.69}, 3839),
        (5120, 17408, {2: 0.99, 3: 1.13, 4: 1.43, 5: 1.75, 8: 2.84, 10: 4.5, 32: 4.5}, 3852),
    ):
        what = f"M4 Pro, {inputs} x {outputs}, 4 bits, times one row"
        one_row = product_ms(m4_pro, 4, 1, inputs, outputs)
        for rows, times in table.items():
            predicted = product_ms(m4_pro, 4, rows, inputs, outputs, OLD_LIMIT) / one_row
            add(what, rows, times, predicted, False, f"issues/{issue}")
    # The pull request was measured with limits of 10 and, where this says so, of 16.
    for rows, ms in {1: 75.9, 3: 84.8, 5: 112.7, 8: 170.8, 12: 241.5}.items():
        predicted = forward_ms(m5_max, LARGEST, 4, rows, 400, 16)
        add("M5 Max, 70B model, 4 bits, ms", rows, ms, predicted, rows in (8, 12), "pull/3791")
    predicted = product_ms(chip("M5"), 4, 32, 5120, 13824)
    add("M5, 5120 x 13824, 4 bits, ms", 32, 0.804, predicted, True, "pull/4171")
    # The machine is not named. Only an Ultra still runs qmv at 10 rows, and the thread's plots are
    # of M2 Ultra and M3 Max.
    for rows, ms, limit in ((6, 19.4, None), (8, 25.4, None), (10, 31.3, None), (10, 31.4, 2)):
        predicted = forward_ms(chip("M2 Ultra"), MISTRAL, 4, rows, 0, limit)
        add("M2 Ultra (inferred), Mistral 7B, 4 bits, ms", rows, ms, predicted, True, "pull/2031")
    # A hybrid with recurrent layers, of which only the products of 27 B weights are modelled.
    predicted = product_ms(chip("M1 Ultra"), 4, 3, 5120, 17408) * 27e9 / (5120 * 17408)
    source = "https://github.com/lablup/mlxcel/pull/1197"
    add("M1 Ultra, 27B hybrid model, 4 bits, ms", 3, 100.5, predicted, True, source)
    predicted = product_ms(replace(chip("M1 Pro"), cores=14), 16, 4, 2048, 32000)
    what = "M1 Pro (14 cores), 2048 x 32000, 16 bits, ms"
    add(what, 4, 1.294, predicted, False, "issues/3967")
    predicted = product_ms(replace(chip("M4"), cores=8), 16, 4, 2048, 2048)
    source = "https://github.com/sonos/tract/pull/2547"
    add("M4 (8 cores), 2048 x 2048, 16 bits, ms", 4, 0.078, predicted, False, source)
    for name, shape, bits, context, ms, source in PLAIN:
        predicted = forward_ms(chip(name), shape, bits, 1, context)
        what = f"{name}, {shape.name}, {bits} bits, ms a token"
        add(what, 1, ms, predicted, name == "M3 Ultra", source)
    for name, shape, keys, by_rows, source in ATTENTION:
        what = f"{name}, attention, {shape.heads}/{shape.kv_heads} heads of {shape.head_dim}, "
        for rows, ms in by_rows.items():
            predicted = attention_ms(chip(name), shape, rows, keys - rows)
            add(what + f"{keys} keys, ms", rows, ms, predicted, name != "M1 Ultra", source)
    return points
