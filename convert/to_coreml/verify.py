"""Recorded calls of a Core ML package, made and replayed: ``python -m`` this module."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream_mlx.errors import UserError
from specstream_mlx.files import decoded
from specstream_mlx.options import FLAG, PATH, TEXTS, most_tokens, option, what
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import progress

from .saved import model_file, require_coremltools

if TYPE_CHECKING:
    from .contents import Contents
    from .executors import Executor
    from .vectors import Asked, Replay

_MAX_TOKENS = 16
_PROMPTS = (
    "Hello, can we move the meeting from Monday to Friday?",
    "Ana wrote to Tom that the report is late. Tom asked her to send it by noon. She did. ",
)


_COMPUTE_UNITS = "cpuOnly", "cpuAndGPU", "cpuAndNeuralEngine", "all"
_COMPUTE_UNIT = what(
    f"one of {', '.join(_COMPUTE_UNITS)}", _COMPUTE_UNITS.__contains__, str, "UNITS"
)


@dataclass(frozen=True)
class RecordingOptions:
    """The texts that are recorded."""

    record: Path | None = option(
        None, PATH, "Only record, and write the calls there.", metavar="FILE"
    )
    adapter: list[str] | None = option(
        None,
        TEXTS,
        "Record this adapter; may be given several times. Default: all.",
        metavar="NAME",
    )
    prompt: list[str] | None = option(
        None,
        TEXTS,
        "Record this text; may be given several times. Default: two of its own, one of them longer "
        "than a chunk.",
        *("--prompt", "-p"),
        metavar="TEXT",
    )
    max_tokens: int | None = most_tokens(
        None, f"Tokens of each recorded text. Default: {_MAX_TOKENS}."
    )

    def given(self) -> str | None:
        """The first option that is given, as its flag."""
        names = (name for name, value in asdict(self).items() if value)
        return next((f"--{name.replace('_', '-')}" for name in names), None)


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
    recording: RecordingOptions,
    compute_units: list[str] | None = option(
        None,
        _COMPUTE_UNIT,
        "On a Mac: who may compute, cpuOnly, cpuAndGPU, cpuAndNeuralEngine or all; may be given "
        "several times. Default: cpuOnly and cpuAndGPU.",
    ),
    as_json: bool = option(False, FLAG, "Print one JSON object instead of the table.", "--json"),
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
    record, given = recording.record, recording.given()
    if vectors is not None and given:
        raise UserError(f"--vectors and {given} were both given, expected at most one")
    if record is not None and compute_units:
        raise UserError("--record and --compute-units were both given, expected at most one")
    if record is not None and as_json:
        raise UserError("--record and --json were both given, expected at most one")
    require_coremltools("verify")
    model_file(package)  # before coremltools is imported, which takes a while
    from . import vectors as calls
    from .contents import Contents
    from .evaluate import Package
    from .executors import has_core_ml

    if compute_units and not has_core_ml():
        raise UserError("--compute-units was given, expected on a Mac only: Core ML runs there")
    if record is not None:
        calls.check_place(record)
    contents = Contents.read(package)
    if contents.supplied:
        raise UserError(
            f"{package} was exported with --lora-io, expected one that holds its adapters: a "
            "recording would repeat theirs in every call"
        )
    if vectors is not None:
        recorded = calls.read(vectors, contents)
    else:
        runs = _asked(contents, recording)
        with progress("Recording") as show:
            recorded = calls.record(contents, Package(package), runs, show)
    if record is not None:
        calls.write(recorded, record)
        count = sum(len(run["calls"]) for run in recorded["runs"])
        note(f"wrote {record} ({count} calls)")
        return
    replays = []
    for executor, exact in _executors(package, vectors is not None, compute_units):
        with progress("Replaying") as show:
            replays.append(calls.replay(recorded, executor, exact, show))
    if as_json:
        print(json.dumps(_values(package, recorded, replays)))
    else:
        for replay in replays:
            _print_table(replay)
    if any(replay.complaint() for replay in replays):
        raise SystemExit(1)


def _asked(contents: "Contents", recording: RecordingOptions) -> "list[Asked]":
    """List the texts to record: greedy ones and, if the package can, a drawn one per adapter."""
    from specstream_mlx.prompts import chat_prompt

    from .vectors import Asked

    adapters = [contents.adapter(name) for name in recording.adapter or contents.adapters]
    max_tokens = recording.max_tokens or _MAX_TOKENS
    asked = (text.encode(errors="surrogateescape") for text in recording.prompt or ())
    given = [decoded(text, "--prompt") for text in asked]
    tokenizer, sizes, texts = contents.read_tokenizer(), contents.sizes, []
    for adapter in adapters:
        if given:
            ids = [chat_prompt(tokenizer, text, adapter.prompt_template) for text in given]
        else:
            short, text = (tokenizer.encode(text) for text in _PROMPTS)
            length = min(sizes.chunk + 5, sizes.context - max_tokens)  # two chunks, if they fit
            ids = [short[: sizes.context], (text * length)[: max(1, length)]]
        texts += [Asked(adapter.name, prompt, max_tokens) for prompt in ids]
        if contents.sampling:
            texts.append(Asked(adapter.name, ids[0], max_tokens, temperature=1.0, seed=1))
    return texts


def _executors(
    package: Path, from_file: bool, compute_units: list[str] | None
) -> "list[tuple[Executor, bool]]":
    """List the executors of this machine, each with whether it computes in float32."""
    from .evaluate import Package
    from .executors import CoreML, has_core_ml

    if has_core_ml():
        return [(CoreML(package, u), False) for u in compute_units or ("cpuOnly", "cpuAndGPU")]
    exact = [(Package(package), True)] if from_file else []
    return [*exact, (Package(package, "fp16"), False)]


def _print_table(replay: "Replay") -> None:
    width = max(len(difference.function) for difference in replay.differences)
    print(f"{replay.executor}:")
    heads = f"{'function':<{width}}  {'output':<16}  {'calls':>5}  {'difference':>10}"
    print(f"{heads}  {'equal integers':>15}  {'ms a call':>9}")
    for found in replay.differences:
        largest = "" if found.largest is None else f"{found.largest:.2g}"
        equal = f"{found.equal} of {found.integers}" if found.integers else ""
        milliseconds = "" if found.seconds is None else f"{1e3 * found.seconds:.1f}"
        line = f"{found.function:<{width}}  {found.output:<16}  {found.calls:>5}  {largest:>10}"
        print(f"{line}  {equal:>15}  {milliseconds:>9}")
    print(replay.complaint() or "Within the bound", end="\n\n")


def _values(package: Path, recorded: dict[str, Any], replays: "list[Replay]") -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {
        "package": str(package),
        "runs": len(recorded["runs"]),
        "replays": [
            {
                "executor": replay.executor,
                "exact": replay.exact,
                "complaint": replay.complaint(),
                "differences": [asdict(difference) for difference in replay.differences],
            }
            for replay in replays
        ],
    }


if __name__ == "__main__":
    program(main)()
