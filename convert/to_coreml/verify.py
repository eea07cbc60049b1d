"""Recorded calls of a Core ML package, made and replayed: ``python -m`` this module."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specstream_mlx.errors import UserError
from specstream_mlx.options import PATH, TEXTS, most_tokens, option, what
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import progress

from .contents import Contents, model_file, require_coremltools
from .executors import COMPUTE_UNITS, CoreML, Executor, has_core_ml

if TYPE_CHECKING:
    from specstream_mlx.generation.request import Request

    from .recordings import Replay

_PROMPTS = (
    "Hello, can we move the meeting from Monday to Friday?",
    "Ana wrote to Tom that the report is late. Tom asked her to send it by noon. She did. ",
)
_UNITS = what(f"one of {', '.join(COMPUTE_UNITS)}", COMPUTE_UNITS.__contains__, str, "UNITS")


def main(
    *,
    package: Path = option(
        ..., PATH, "A package of export-coreml.", metavar="PACKAGE", positional=True
    ),
    vectors: Path | None = option(
        None,
        PATH,
        "Recorded calls to replay. Default: some are recorded first, by numpy in float32.",
        metavar="FILE",
    ),
    record: Path | None = option(
        None, PATH, "Only record, and write the calls there.", metavar="FILE"
    ),
    adapter: list[str] | None = option(
        None,
        TEXTS,
        "Record this adapter; may be given several times. Default: all.",
        metavar="NAME",
    ),
    max_tokens: int = most_tokens(16, "Tokens of each recorded text."),
    compute_units: list[str] | None = option(
        None,
        _UNITS,
        "On a Mac: who may compute, cpuOnly, cpuAndGPU, cpuAndNeuralEngine or all; may be given "
        "several times. Default: cpuOnly and cpuAndGPU.",
    ),
) -> None:
    """Replay recorded calls of a Core ML package, and say how far its outputs are off.

    On a Mac Core ML replays them. Elsewhere numpy does, in half precision and, where the calls come
    from a file, in float32. Exits with code 1 where they differ more than rounding explains.

    Examples:

        python -m specstream_mlx.convert.to_coreml.verify tools.mlpackage

    Record on Linux, replay on a Mac:

        python -m specstream_mlx.convert.to_coreml.verify tools.mlpackage --record calls.json

        python -m specstream_mlx.convert.to_coreml.verify tools.mlpackage --vectors calls.json
    """
    for first, ours, second, theirs in (
        ("vectors", vectors, "record", record),
        ("vectors", vectors, "adapter", adapter),
        ("record", record, "compute-units", compute_units),
    ):
        if ours and theirs:
            raise UserError(f"--{first} and --{second} were both given, expected at most one")
    if compute_units and not has_core_ml():
        raise UserError("--compute-units was given, expected on a Mac only: Core ML runs there")
    require_coremltools("verify")
    model_file(package)  # before coremltools is imported, which takes a while
    from . import recordings
    from .evaluate import Package

    if record is not None and record.exists():
        raise UserError(f"{record} exists already, expected a name that nothing is at")
    contents = Contents.read(package)
    if vectors is not None:
        recorded = recordings.read(vectors, contents)
    else:
        requests = _requests(contents, adapter, max_tokens)
        with progress("Recording") as show:
            recorded = recordings.record(contents, Package(package), requests, show)
    if record is not None:
        recordings.write(recorded, record)
        note(f"wrote {record} ({sum(len(run['calls']) for run in recorded['runs'])} calls)")
        return
    replays = []
    for executor, exact in _executors(package, vectors is not None, compute_units):
        with progress("Replaying") as show:
            replays.append(recordings.replay(recorded, executor, exact, show))
        _print_table(replays[-1])
    if any(replay.complaint() for replay in replays):
        raise SystemExit(1)


def _requests(
    contents: Contents, names: list[str] | None, max_tokens: int
) -> "list[tuple[str, Request]]":
    """The texts to record: greedy ones and, if the package can, a drawn one per adapter."""
    from specstream_mlx.engine.sampling import keyed_sampler
    from specstream_mlx.generation.request import Request

    adapters = [contents.adapter(name).name for name in names or contents.adapters]
    tokenizer, sizes = contents.read_tokenizer(), contents.sizes
    short, text = (tokenizer.encode(text) for text in _PROMPTS)
    length = min(sizes.chunk + 5, sizes.context - max_tokens)  # two chunks, if they fit
    first = Request(short[: sizes.context], max_tokens=max_tokens, end_tokens=contents.end_tokens)
    requests = [first, replace(first, prompt=(text * length)[: max(1, length)])]
    if contents.sampling:
        requests.append(replace(first, sampler=keyed_sampler(1)))
    return [(name, request) for name in adapters for request in requests]


def _executors(
    package: Path, from_file: bool, compute_units: list[str] | None
) -> list[tuple[Executor, bool]]:
    """List the executors of this machine, each with whether it computes in float32."""
    from .evaluate import Package

    if has_core_ml():
        return [(CoreML(package, u), False) for u in compute_units or ("cpuOnly", "cpuAndGPU")]
    exact: list[tuple[Executor, bool]] = [(Package(package), True)] if from_file else []
    return [*exact, (Package(package, "fp16"), False)]


def _print_table(replay: "Replay") -> None:
    width = max(len(difference.function) for difference in replay.differences)
    print(f"{replay.executor}:")
    heads = f"{'function':<{width}}  {'output':<16}  {'calls':>5}  {'difference':>10}"
    print(f"{heads}  {'equal integers':>15}  {'ms a call':>9}")
    for diff in replay.differences:
        largest = "" if diff.largest is None else f"{diff.largest:.2g}"
        equal = f"{diff.equal} of {diff.integers}" if diff.integers else ""
        milliseconds = "" if diff.seconds is None else f"{1e3 * diff.seconds:.1f}"
        line = f"{diff.function:<{width}}  {diff.output:<16}  {diff.calls:>5}  {largest:>10}"
        print(f"{line}  {equal:>15}  {milliseconds:>9}")
    print(replay.complaint() or "Within the bound", end="\n\n")


if __name__ == "__main__":
    program(main)()
