"""``specstream-mlx export-coreml``."""

from pathlib import Path

from .. import bundled, demonstration
from ..loading.model_paths import adapter_directory, model_directory
from ..options import FILE, FLAG, MODEL, TEXTS, integer, option, what
from ..terminal.notes import note
from ..terminal.progress import progress
from .options import ModelOptions

_SIZES = what(
    "numbers as in 8,16",
    lambda value: isinstance(value, tuple) and not any(map(integer(1).objection, value)),
    lambda text: tuple(map(int, text.split(","))),
    "N,N",
)


def export_coreml(
    *,
    output: Path = option(..., FILE, "The package: a name that ends in .mlpackage."),
    model: str | None = option(None, MODEL, "A model in MLX format. Default: smollm2."),
    adapter: list[str] | None = option(
        None,
        TEXTS,
        "An adapter, or streams of the base; may be given several times.",
        metavar="NAME|DIR",
    ),
    context: int = option(2048, integer(1), "Tokens of prompt and text."),
    nodes: tuple[int, ...] = option((8, 16), _SIZES, "Sizes of trees, a function each."),
    chunk: int = option(64, integer(1), "Prompt tokens of a call."),
    candidates: int = option(4, integer(1), "Tokens that a stream guesses."),
    sampling: bool = option(False, FLAG, "Add functions that return logits, for sampling."),
    check: bool = option(
        True, FLAG, "Do not check, before writing the package, that it prefers MLX's tokens."
    ),
    report: bool = option(False, FLAG, "Print how each tensor was written."),
) -> None:
    r"""Export a model, its adapters and their streams as a Core ML package for iOS 18.

    Needs the coreml extra. Nothing of it has run on Apple hardware yet.

    Examples:

        specstream-mlx export-coreml --adapter sql --adapter summarize --context 512 \
            --output tools.mlpackage
    """
    ModelOptions(model).check()
    from specstream_mlx.convert.to_coreml.contents import require_coremltools

    require_coremltools("export-coreml")
    from specstream_mlx.convert.to_coreml.export import export
    from specstream_mlx.convert.to_coreml.supported import Sizes

    directories = [Path(adapter_directory(name)) for name in adapter or ()]
    if demonstration.is_meant(model) and not directories:
        directories.append(bundled.streams_path())
    with progress("Exporting") as show:
        lines = export(
            model_directory(demonstration.model_path(model)),
            output,
            directories,
            Sizes(context, nodes, chunk, candidates),
            sampling=sampling,
            check=check,
            show=show,
        )
    for line in lines if report else ():
        print(f"{line.name}\t{line.form}\t{'x'.join(map(str, line.shape))}\t{line.nbytes}")
    size = sum(line.nbytes for line in lines) / 1e6
    note(f"wrote {output} ({size:.1f} MB of weights)")
    if others := sum(line.uneven for line in lines):
        groups = sum(line.groups for line in lines)
        note(f"{others} of {groups} groups have an offset that is no integer")
