"""``specstream-mlx export-coreml``."""

from pathlib import Path
from typing import Annotated

from typer import Option

from .. import bundled, demonstration
from ..options.kinds import integer, what
from ..terminal.commands import of_kind
from ..terminal.notes import note
from .packages import require_coremltools

_SIZES = what(
    "numbers as in 8,16",
    lambda value: isinstance(value, tuple) and not any(map(integer(1).objection, value)),
    lambda text: tuple(map(int, text.split(","))),
    "N,N",
)


def export_coreml(
    output: Annotated[
        Path,
        Option(metavar="FILE", help="The package: a name that ends in .mlpackage."),
    ],
    model: Annotated[
        str | None,
        Option(
            metavar="DIR|REPO",
            help="A model in MLX format. Default: smollm2.",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        Option(
            metavar="NAME|DIR",
            help="An adapter directory, or a bundled adapter's name; may be given several times.",
        ),
    ] = None,
    streams: Annotated[
        Path | None, Option(metavar="DIR", help="Lossless streams of the base.")
    ] = None,
    context: Annotated[int, of_kind(integer(1), "Tokens of prompt and text.")] = 2048,
    nodes: Annotated[tuple, of_kind(_SIZES, "Sizes of trees, a function each.")] = (8, 16),
    chunk: Annotated[int, of_kind(integer(1), "Prompt tokens of a call.")] = 64,
    candidates: Annotated[int, of_kind(integer(1), "Tokens that a stream guesses.")] = 4,
    sampling: Annotated[
        bool, Option("--sampling", help="With functions that return logits, to sample from.")
    ] = False,
    lora_io: Annotated[
        bool,
        Option(
            "--lora-io",
            help="One set of functions that take an adapter as an array, instead of a set each; "
            "the arrays are written too.",
        ),
    ] = False,
    report: Annotated[bool, Option("--report", help="Print how each tensor was written.")] = False,
) -> None:
    """Export a model, its adapters and their streams as a Core ML package for iOS 18.

    Needs the coreml extra. Nothing of it has run on Apple hardware yet.

    [bold]Examples[/bold]

    [cyan]  specstream-mlx export-coreml --adapter sql --adapter summarize --context 512
    --output tools.mlpackage[/cyan]
    """
    require_coremltools("export-coreml")
    from specstream_mlx.convert.to_coreml.export import export
    from specstream_mlx.convert.to_coreml.supported import Sizes

    from ..loading import model_directory
    from ..terminal.progress import progress

    directories = [
        bundled.adapter_path(name)
        if not Path(name).exists() and name in bundled.adapter_names()
        else Path(name)
        for name in adapter or ()
    ]
    if streams is not None:
        directories.append(streams)
    elif demonstration.is_meant(model) and not directories:
        directories.append(bundled.streams_path())
    base = model_directory(demonstration.model_path(model))
    sizes = Sizes(context, nodes, chunk, candidates)
    with progress("Exporting") as show:
        lines = export(
            base,
            output,
            directories,
            sizes,
            sampling=sampling,
            supplied=lora_io,
            show=show,
        )
    if report:
        for line in lines:
            print(f"{line.name}\t{line.form}\t{'x'.join(map(str, line.shape))}\t{line.nbytes}")
    size = sum(line.nbytes for line in lines) / 1e6
    note(f"wrote {output} ({size:.1f} MB of weights)")
    if others := sum(line.out_of_range for line in lines):
        groups = sum(line.groups for line in lines)
        note(f"{others} of {groups} groups have an offset that is no integer in range")
