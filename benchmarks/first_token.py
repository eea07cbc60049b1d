"""Time from the start of a first ``generate`` to its first text, beside mlx_lm's.

    python -m benchmarks.first_token                         # base and lossless streams, 8 runs
    python -m benchmarks.first_token --model DIR --prompt TEXT

Both commands start in fresh processes, in turns, ours with empty caches: nothing about the
machine has been measured. What counts is the time from the start of the process to the
first character of text, so imports and loading are in it, as a user has them.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from specstream_mlx import demonstration
from specstream_mlx.hardware import device
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, TEXT, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, table, write_report

OURS, MLX_LM = "specstream-mlx generate", "mlx_lm generate"
_MODULES = {OURS: ["specstream_mlx", "generate"], MLX_LM: ["mlx_lm", "generate"]}
_RULE = b"=" * 10 + b"\n"
"""What mlx_lm prints in front of the text."""

COLUMNS = {
    "command": "{command}",
    "first text, seconds, median": "{median:.2f}",
    "least": "{least:.2f}",
    "most": "{most:.2f}",
}


def seconds_to_text(way: str, model: Path, prompt: str) -> float:
    """Seconds from the start of a process to its first text.

    Raises:
        RuntimeError: it ended without text.
    """
    command = [sys.executable, "-m", *_MODULES[way], "--model", str(model)]
    command += ["--prompt", prompt, "--max-tokens", "32"]
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"XDG_CACHE_HOME": cache},
        )
        assert process.stdout is not None
        found = b""
        while not found.removeprefix(_RULE).strip(b"=\n"):
            read = os.read(process.stdout.fileno(), 1)
            if not read:
                raise RuntimeError(f"{' '.join(command)} ended without text")
            found += read
        seconds = time.perf_counter() - started
        process.communicate()
    return seconds


def main(
    model: Path | None = option(None, PATH, "Default: the demonstration model."),
    prompt: str = option(
        "Proofread this message.\nHi Ana, can you sned me the reports on monday",
        TEXT,
        "What both are asked.",
    ),
    runs: int = option(8, integer(1), "Runs of each, after one that does not count."),
    output: Path = OUTPUT,
) -> None:
    """Compare the time to the first text of a first generate with mlx_lm's."""
    path = model or demonstration.base_path()
    found: dict[str, list[float]] = {MLX_LM: [], OURS: []}
    for number in track(range(runs + 1), "first text"):
        for way, seconds in found.items():
            taken = seconds_to_text(way, path, prompt)
            if number:  # the first run reads files that the others find in memory
                seconds.append(taken)
    rows: list[dict[str, Any]] = [
        {
            "command": way,
            "median": statistics.median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            "seconds": seconds,
        }
        for way, seconds in found.items()
    ]
    ratio = statistics.median(
        ours / theirs for ours, theirs in zip(found[OURS], found[MLX_LM], strict=True)
    )
    facts = device.describe() | {"model": path.name, "runs": runs}
    lines = [f"{measured_on(facts)}; {runs} runs of each in turns, caches empty.", ""]
    lines += [f"Ours over mlx_lm's, median of pairs: {ratio:.2f}.", "", *table(COLUMNS, rows)]
    values = {"facts": facts, "rows": rows, "ratio": ratio}
    print(write_report(output, f"first-token-{machine_suffix(facts)}", values, lines))


if __name__ == "__main__":
    program(main)()
