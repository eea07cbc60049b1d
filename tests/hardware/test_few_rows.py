"""The kernel for few rows, as C++: exact products on real shapes, and planted errors are noticed.

Arithmetic, addresses and order are checked here; neither speed nor Metal's grammar.
"""

import ctypes
import platform
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from specstream_mlx.hardware import few_rows
from specstream_mlx.hardware.few_rows import BODY, OUTPUTS, ROWS

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None,
    reason="the kernel is compiled as C++ by g++ on Linux alone",
)

INPUTS = {"Qwen3-8B": (4096, 12288), "Llama-3.2-3B": (3072, 8192), "SmolLM2-135M": (576, 1536)}
COLUMNS = 37  # of each matrix, so that no number of outputs a lane divides them
DTYPES = {"half": mx.float16, "bfloat": mx.bfloat16, "float": mx.float32}
ERRORS = {
    "a wrong shift": (">> (bit % 32)", ">> (bit % 32 ^ 4)"),
    "the neighbour's scale": ("scales[group]", "scales[group ^ 1]"),
    "the neighbour's bias": ("biases[group]", "biases[group ^ 1]"),
    "a lost last chunk": ("chunk < chunks", "chunk + 1 < chunks"),
    "a lost last group": ("chunk < chunks", "(chunk + GROUP / 32) < chunks"),
    "a lane that is not added": ("sum += simd_shuffle_xor(sum, ushort(1));", ""),
    "a lost output": ("first + o < outputs", "first + o + 1 < outputs"),
    "a row for another": ("x + r * inputs", "x + (R - 1 - r) * inputs"),
    "half of a row's part": ("low[i % 4] : high[i % 4]", "low[i % 4] : low[i % 4]"),
    "a simdgroup beside another": ("simdgroup * 4 + slot", "simdgroup * 5 + slot"),
}

KERNEL = """
namespace kernel_{number} {{
template <typename T> void run(const Arguments& a, const T* x, const uint* w, const T* scales,
                               const T* biases, T* y) {{
    const int R = a.R, OUT = a.OUT, BITS = a.BITS, GROUP = a.GROUP;
    const int x_shape[] = {{a.rows, a.inputs}}, w_shape[] = {{a.outputs, 0}};
    const int simdgroups = (a.outputs + 4 * OUT - 1) / (4 * OUT);
    for (int number = 0; number < (simdgroups + 1) / 2 * 2; ++number) {{
        const uint3 threadgroup_position_in_grid = {{uint(number / 2), 0, 0}};
        const uint simdgroup_index_in_threadgroup = number % 2;
        run_simdgroup([&] {{
            const uint thread_index_in_simdgroup = current;
            {body}
        }});
    }}
}}
}}
extern "C" void run_{number}(int kind, const Arguments* a, const void* x, const uint* w,
                             const void* s, const void* b, void* y) {{
    auto as = [&]<typename T>(T) {{
        kernel_{number}::run<T>(*a, (const T*)x, w, (const T*)s, (const T*)b, (T*)y);
    }};
    kind == 0 ? as(half()) : kind == 1 ? as(bfloat()) : as(float());
}}
"""


class Arguments(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int) for name in ("R", "OUT", "BITS", "GROUP", "rows", "inputs", "outputs")
    ]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The body as it is, then one for each planted error, compiled at once."""
    bodies = [BODY]
    for old, new in ERRORS.values():
        assert BODY.count(old) == 1, old
        bodies.append(BODY.replace(old, new))
    parts = [KERNEL.format(number=number, body=body) for number, body in enumerate(bodies)]
    folder = tmp_path_factory.mktemp("kernel")
    shims = Path(__file__).with_name("metal_as_cpp.cpp").read_text()
    (folder / "kernels.cpp").write_text(shims.replace("// KERNELS", "".join(parts)))
    options = "-std=c++20 -O1 -w -ffp-contract=off -shared -fPIC".split()
    options += ["-mfma"] * (platform.machine() == "x86_64")  # else it is computed in software
    command = ["g++", *options, "kernels.cpp", "-o", "kernels.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    library = ctypes.CDLL(str(folder / "kernels.so"))
    names = ["as it is", *ERRORS]
    return {name: getattr(library, f"run_{number}") for number, name in enumerate(names)}


def case(inputs, bits, group_size, kind, columns=COLUMNS):
    """Rows x, and a quantized layer, as numpy arrays; and the exact products in float64."""
    rng = np.random.default_rng(inputs + bits + group_size)
    x = mx.array(rng.normal(size=(max(ROWS), inputs))).astype(DTYPES[kind])
    weight = mx.array(rng.normal(size=(columns, inputs)).astype(np.float32)).astype(DTYPES[kind])
    w, scales, biases = mx.quantize(weight, group_size, bits)
    words = np.array(w)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words[..., None] >> shifts & (2**bits - 1)).reshape(columns, inputs)
    spread = (np.repeat(exact(array), group_size, axis=1) for array in (scales, biases))
    scale, bias = spread
    expected = exact(x) @ (codes * scale + bias).T
    sizes = np.abs(exact(x)) @ np.abs(codes * scale + bias).T
    return [stored(x), words, stored(scales), stored(biases)], expected, sizes


def exact(array):
    return np.array(array.astype(mx.float32)).astype(np.float64)


def stored(array):
    """The bytes of an array, which may be in bfloat16."""
    return np.array(array.view(mx.uint16 if array.itemsize == 2 else mx.uint32))


def computed(kernel, kind, arrays, rows, outputs, bits, group_size, columns=COLUMNS):
    x, w, scales, biases = arrays
    y = np.zeros((rows, columns), x.dtype)
    fields = Arguments(rows, outputs, bits, group_size, rows, x.shape[1], columns)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, w, scales, biases, y)]
    kernel(list(DTYPES).index(kind), ctypes.byref(fields), *pointers)
    return y


def as_float(y, kind):
    return exact(mx.array(y).view(DTYPES[kind]))


def is_exact(y, expected, sizes, kind):
    """Whether all are within the rounding of sums in float32 and of the result."""
    result = {"half": 2**-11, "bfloat": 2**-8, "float": 2**-24}[kind]
    within = 1.01 * result * np.abs(expected) + 2**-19 * sizes
    return bool((np.abs(as_float(y, kind) - expected) <= within).all())


CASES = [
    (inputs, bits, group_size, kind)
    for (inputs, bits, group_size), kind in zip(
        product(sum(INPUTS.values(), ()), few_rows._BITS, (32, 64)),
        ["bfloat", "half", "float", "bfloat", "half"] * 5,
        strict=False,
    )
]


@needs_compiler
@pytest.mark.parametrize(("inputs", "bits", "group_size", "kind"), CASES)
def test_products_are_exact_for_any_number_of_rows(kernels, inputs, bits, group_size, kind):
    """And every row's are the same in every bit, whatever rows are beside it."""
    arrays, expected, sizes = case(inputs, bits, group_size, kind)
    run = kernels["as it is"]
    whole = computed(run, kind, arrays, max(ROWS), 4, bits, group_size)
    assert is_exact(whole, expected, sizes, kind)
    for rows in range(1, max(ROWS)):
        outputs = OUTPUTS[rows % len(OUTPUTS)]
        some = computed(run, kind, arrays, rows, outputs, bits, group_size)
        assert np.array_equal(some, whole[:rows]), (rows, outputs)


@needs_compiler
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 15, 16, 17, 31, 33])
def test_borders(kernels, columns):
    arrays, expected, sizes = case(576, 4, 64, "bfloat", columns)
    for rows, outputs in product((1, 7, 16), OUTPUTS):
        y = computed(kernels["as it is"], "bfloat", arrays, rows, outputs, 4, 64, columns)
        assert is_exact(y, expected[:rows], sizes[:rows], "bfloat")


@needs_compiler
@pytest.mark.parametrize("error", ERRORS)
def test_planted_errors_are_noticed(kernels, error):
    for bits, group_size in product(few_rows._BITS, (32, 64)):
        arrays, expected, sizes = case(576, bits, group_size, "bfloat")
        y = computed(kernels[error], "bfloat", arrays, 5, 2, bits, group_size)
        assert not is_exact(y, expected[:5], sizes[:5], "bfloat")
