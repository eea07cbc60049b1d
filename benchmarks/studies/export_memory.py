"""Peak memory of a Core ML export: less than three times the packed weights is asked for at 1B.

    python -m benchmarks.studies.export_memory --size 1.1B
    python -m benchmarks.studies.export_memory --size 100M

A random Llama is converted to 4 bits in a temporary directory and exported, without an adapter, by
a process of its own. Its peak resident memory, Python, MLX and coremltools included, is what
counts; what the imports alone take is printed beside it. It exits with 1 where the peak is above
the bound.
"""

import tempfile
import time
from pathlib import Path

import typer
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.recipes import Quantization

from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import progress

from ..own_process import in_own_process, peak_bytes
from .convert_memory import SIZE, make_model

BOUND = 3.0
FILE_BYTES = 1_000_000_000


def make_base(path: str, size: str) -> None:
    """Write a random Llama in 4 bits, and beside it what it was converted from."""
    base = Path(path)
    source = base.with_name("source")
    make_model(str(source), size, "float16", FILE_BYTES)
    convert_base(source, base, Quantization(4))


def export_measured(base: str, output: str, context: int) -> dict[str, float]:
    """Export in this process: peak memory before and after, and seconds."""
    from specstream_mlx.convert.to_coreml.export import export
    from specstream_mlx.convert.to_coreml.supported import Sizes

    before, began = peak_bytes(), time.perf_counter()
    with progress("Exporting") as show:
        export(Path(base), Path(output), [], Sizes(context), show=show)
    return {"before": before, "peak": peak_bytes(), "seconds": time.perf_counter() - began}


def main(
    size: str = SIZE,
    context: int = option(2048, integer(1), "Tokens of prompt and text."),
) -> None:
    """Measure the peak memory of an export in 4 bits."""
    with tempfile.TemporaryDirectory() as scratch:
        base, package = Path(scratch) / "mlx", Path(scratch) / "x.mlpackage"
        in_own_process(make_base, base, size)
        result = in_own_process(export_measured, base, package, context)
        (weights,) = (file.stat().st_size for file in package.rglob("weight.bin"))
        held = sum(file.stat().st_size for file in base.glob("*.safetensors"))
    ratio = result["peak"] / weights
    print(
        f"{size} in 4 bits: {weights / 1e6:.0f} MB of weights, {held / 1e6:.0f} MB in MLX's files"
    )
    print(f"exported in {result['seconds']:.0f} s")
    print(f"peak {result['peak'] / 1e6:.0f} MB, {result['before'] / 1e6:.0f} MB of it the imports")
    print(f"{ratio:.2f} times the weights: {'kept' if ratio < BOUND else 'EXCEEDED'}")
    if ratio >= BOUND:
        raise typer.Exit(1)


if __name__ == "__main__":
    program(main)()
