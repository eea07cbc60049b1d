"""Peak memory and time of a training step, by number of segments (arXiv 2402.11131, App. I).

    python -m benchmarks.studies.segment_memory --model runs/adapters/expanded --completion 512

Every row runs in a process of its own, so that its peak is its own. The figure is the process's
peak resident memory above what it held before the first step.
"""

import time
from pathlib import Path
from typing import Any

import torch
from specstream_mlx.convert.pytorch.losses import Batch, n_gram_loss
from specstream_mlx.convert.pytorch.trainer import build_model
from specstream_mlx.convert.pytorch.training_settings import TrainSettings

from specstream_mlx.hardware import device
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, TEXT, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.stream_settings import default_alphas

from ..own_process import in_own_process, peak_bytes
from ..report import OUTPUT, table, write_report


def one_step(
    model_dir: str, prompt: int, completion: int, batch: int, segments: int
) -> dict[str, Any]:
    """Two steps of shared-mode training on random tokens: bytes above the model, seconds."""
    torch.manual_seed(0)
    settings = TrainSettings(model=Path(model_dir), data=Path(), output=Path(), mode="shared")
    model = build_model(settings)
    length = prompt + completion
    tokens = torch.randint(model.causal_lm.config.vocab_size, (batch, length))
    inputs = Batch(tokens, torch.full((batch,), prompt), torch.full((batch,), length))
    before = peak_bytes()
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            loss = n_gram_loss(model, inputs, default_alphas("shared", 4), segments)
        loss.total.backward()
        seconds = time.perf_counter() - began
    return {"segments": segments, "bytes": peak_bytes() - before, "seconds": round(seconds, 2)}


COLUMNS = {
    "segments": "{segments}",
    "peak above the model, MB": "{megabytes:.0f}",
    "of unsegmented": "{share:.2f}",
    "step, s": "{seconds:.2f}",
}


def markdown(
    rows: list[dict[str, Any]], prompt: int, completion: int, batch: int, facts: dict[str, Any]
) -> list[str]:
    """The lines of the report."""
    shown = [
        row | {"megabytes": row["bytes"] / 1e6, "share": row["bytes"] / rows[0]["bytes"]}
        for row in rows
    ]
    return [
        f"{facts['machine']}, {facts['cpu']}. Shared mode, gamma = 4, bfloat16 autocast; a batch "
        f"of {batch}, {prompt} prompt and {completion} completion tokens each.",
        "",
        *table(COLUMNS, shown),
    ]


def main(
    model: Path = option(..., PATH, "Hugging Face directory of a base."),
    prompt: int = option(64, integer(1), "Prompt tokens."),
    completion: int = option(512, integer(1), "Completion tokens."),
    batch: int = option(4, integer(1), "Sequences."),
    segments: str = option("1,2,4,8,16", TEXT, "Numbers of segments."),
    output: Path = OUTPUT,
) -> None:
    """Measure a training step's memory by number of segments."""
    sizes = (model, prompt, completion, batch)
    rows = [
        in_own_process(one_step, *sizes, int(number), torch_first=True)
        for number in track(segments.split(","), "segments")
    ]
    facts = device.describe()
    lines = markdown(rows, prompt, completion, batch, facts)
    print(write_report(output, "segment-memory", {"facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
