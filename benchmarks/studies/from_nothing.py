"""From a base alone to streams that draft: how far does an hour of ``specstream-mlx train`` come?

    python -m benchmarks.studies.from_nothing --work runs/from-nothing

The bundled base answers prompts of the mixture that it was trained on, streams learn from that, and
they are scored beside the shipped streams by exact replay on what the base answers to texts typed
for development. The minutes are those of the whole command, answers and validation included. An
interrupted call goes on where it ended, and its minutes add up.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.demo_model.train_adapters import answers, mixed_prompts
from specstream_mlx.convert.demo_model.typed_dev import typed_prompts

from specstream_mlx import bundled, demonstration
from specstream_mlx.adapters.description import describe
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.hardware import device
from specstream_mlx.staging import append

from ..own_process import run_module
from ..replay import replayed
from ..report import RESULTS, Output, commit, machine_suffix, measured_on, table, write_report

TRAINED, SHIPPED = "trained here", "shipped"

COLUMNS = {
    "streams": "{streams}",
    "N_s": "{layers}",
    "rank of the seed": "{rank}",
    "minutes": "{minutes}",
    "streams right by depth": "{depths}",
    "accepted length of a chain": "{accepted_length:.3f}",
}


def train(work: Path, prompts: int, settings: dict[str, Any]) -> tuple[Path, float]:
    """Train streams for the bundled base, or go on.

    Returns:
        The adapter, and the minutes that it took over all calls.
    """
    adapter, spent, config = work / "streams", work / "minutes.jsonl", work / "train.yaml"
    if not adapter.exists():
        work.mkdir(parents=True, exist_ok=True)
        learned = [tasks.instructed(item) for item in mixed_prompts(prompts, "from-nothing")]
        asked = work / "prompts.jsonl"
        asked.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in learned))
        config.write_text(json.dumps(settings))  # which is YAML
        base = demonstration.base_path()
        places = ("--model", base, "--prompts", asked, "--adapter-path", adapter)
        flags = ["-c", config, *places, "--no-outcome"]
        if (work / "streams.training" / "last.safetensors").exists():
            flags.append("--resume")
        began = time.monotonic()
        try:
            run_module("specstream_mlx", "train", *flags)
        finally:
            append(spent, json.dumps((time.monotonic() - began) / 60) + "\n")
    return adapter, sum(map(json.loads, spent.read_text().splitlines()))


@one_line_errors
def main(
    work: Annotated[Path, typer.Option(help="Directory for answers and run.")],
    prompts: Annotated[int, typer.Option(help="That the base answers.", min=20)] = 1500,
    max_tokens: Annotated[int, typer.Option(help="Of an answer at most.", min=2)] = 200,
    iters: Annotated[int, typer.Option(help="Iterations.", min=1)] = 450,
    batch_size: Annotated[int, typer.Option(help="Sequences of an iteration.", min=1)] = 16,
    layers: Annotated[int, typer.Option(help="Top layers with streams (N_s).", min=1)] = 6,
    rank: Annotated[int, typer.Option(help="Of the map that seeds the streams.", min=1)] = 384,
    output: Output = RESULTS,
) -> None:
    """Train lossless streams from nothing and score them beside the shipped ones (resumable)."""
    settings = {"iters": iters, "batch_size": batch_size, "max_tokens": max_tokens}
    settings |= {"num_msa_layers": layers, "stream_init_rank": rank, "steps_per_eval": 75}
    adapter, minutes = train(work, prompts, settings)
    base = demonstration.base_path()
    data = answers(work / "typed.jsonl", base, typed_prompts())
    rows: list[dict[str, Any]] = []
    places = {TRAINED: (adapter, f"{minutes:.0f}"), SHIPPED: (bundled.streams_path(), "")}
    for name, (place, shown) in places.items():
        found = replayed(base, place, data)
        config = describe(place).stream_config
        sizes = {"layers": config.num_msa_layers, "rank": config.stream_init_rank}
        depths = " ".join(f"{share:.2f}" for share in found["accuracy"][1:])
        rows.append({"streams": name, "minutes": shown, "depths": depths, **sizes, **found})
    facts = device.describe()
    text = (
        f"{measured_on(facts)}, {commit()}. {iters} iterations of {batch_size} of the bundled "
        f"base's answers to {prompts} prompts. Scored by replay on what it answers to "
        f"{rows[0]['texts']} typed texts."
    )
    name = f"from-nothing-{machine_suffix(facts)}"
    lines = [text, "", *table(COLUMNS, rows)]
    print(write_report(output, name, {"facts": text, "rows": rows}, lines))


if __name__ == "__main__":
    typer.run(main)
