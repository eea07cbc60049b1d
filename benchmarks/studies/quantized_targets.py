"""Must streams be trained against the very weights that are deployed? 16-bit and 4-bit targets.

    python -m benchmarks.studies.quantized_targets --base runs/adapters/expanded --work runs/targets

Lossless streams learn from the answers and the hidden states of the base in float16, and others
from those of the same base in 4 bits; both are then run on the 4-bit base, and scored by exact
replay on what it answers to texts typed for development. The same command resumes.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.demo_model.train_adapters import (
    answers,
    mixed_prompts,
    write_base,
)
from specstream_mlx.convert.demo_model.typed_dev import typed_prompts

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.hardware import device

from ..replay import replayed
from ..report import RESULTS, Output, commit, machine_suffix, measured_on, table, write_report
from .two_trainers import by_mlx

FULL, PACKED = "16 bits", "4 bits"

_DIRECTORIES = {FULL: "bits16", PACKED: "bits4"}

RUNS = ((FULL, FULL), (FULL, PACKED), (PACKED, PACKED))
"""What streams are trained against, and what they are run on."""


COLUMNS = {
    "trained against": "{trained}",
    "run on": "{run}",
    "streams right by depth": "{depths}",
    "accepted length": "{accepted_length:.3f}",
}


@one_line_errors
def main(
    base: Annotated[Path, typer.Option(help="Hugging Face directory of a base.")],
    work: Annotated[Path, typer.Option(help="Directory for bases, answers and runs.")],
    prompts: Annotated[int, typer.Option(help="Prompts to learn from.", min=1)] = 1500,
    iters: Annotated[int, typer.Option(help="Steps of each run.", min=1)] = 200,
    batch_size: Annotated[int, typer.Option(help="Sequences of a step.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Of prompts and weights.")] = 0,
    output: Output = RESULTS,
) -> None:
    """Train streams against 16-bit and 4-bit weights and run both on 4 bits (resumable)."""
    work.mkdir(parents=True, exist_ok=True)
    learned = [tasks.instructed(item) for item in mixed_prompts(prompts, f"targets-{seed}")]
    typed = typed_prompts()
    bases = {name: work / directory for name, directory in _DIRECTORIES.items()}
    adapters: dict[str, Path] = {}
    for (name, directory), bits in zip(bases.items(), (None, 4), strict=True):
        if not directory.exists():
            write_base(base, directory, bits)
        place = work / f"streams-{directory.name}-{iters}"
        adapters[name] = place / "mlx"
        if not adapters[name].exists():
            data = answers(work / f"{directory.name}-learned.jsonl", directory, learned)
            by_mlx(directory, data, place, iters, batch_size, seed)
    rows: list[dict[str, Any]] = []
    for trained, run in RUNS:
        data = answers(work / f"{bases[run].name}-typed.jsonl", bases[run], typed)
        found = replayed(bases[run], adapters[trained], data)
        depths = " ".join(f"{share:.3f}" for share in found["accuracy"][1:])
        rows.append({"trained": trained, "run": run, "depths": depths, **found})
    facts = device.describe()
    text = (
        f"{measured_on(facts)}, {commit()}. Lossless streams, {iters} steps of {batch_size} of "
        f"{prompts} answers of the base that they are trained against; scored by replay on what "
        f"the base that they run on answers to {rows[0]['texts']} typed texts."
    )
    name = f"quantized-targets-{machine_suffix(facts)}"
    lines = [text, "", *table(COLUMNS, rows)]
    print(write_report(output, name, {"facts": text, "rows": rows}, lines))


if __name__ == "__main__":
    typer.run(main)
