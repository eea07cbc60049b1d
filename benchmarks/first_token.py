"""Time from the start of a command to its first token: ``generate``, ``serve``, ``writing-tools``.

    python -m benchmarks.first_token                         # 5 runs of each, and of mlx_lm's

All commands start in fresh processes, in turns, ours with empty caches: nothing about the machine
has been measured. What counts is the time from the start of the process to the first token of
text, so imports and loading are in it, as a user has them. The server and the page are asked as
soon as they print their address, the page for its files first; a second request shows what
loading was.
"""

import json
import os
import pty
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specstream_mlx import demonstration
from specstream_mlx.hardware import device
from specstream_mlx.options import integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, table, write_report

TEXT = "Hi Ana, can you sned me the reports on monday"
OURS, MLX_LM = "specstream-mlx generate", "mlx_lm generate"
GENERATING = {MLX_LM: "mlx_lm", OURS: "specstream_mlx"}
"""Commands that write and end, and their modules."""

SERVING = {
    "specstream-mlx writing-tools": (["writing-tools", "--no-browser"], "base:proofread"),
    "specstream-mlx serve": (["serve", "--port", "0"], "base"),
}
"""Commands that serve, and the model that is asked."""

_RULE = b"=" * 10 + b"\n"
"""What mlx_lm prints in front of the text."""

COLUMNS = {
    "command": "{command}",
    "first token, s": "{median:.2f}",
    "least": "{least:.2f}",
    "most": "{most:.2f}",
    "of the second request": "{again:.2f}",
}


def seconds_to_text(module: str, model: Path) -> float:
    """Seconds from the start of a program that writes and ends to its first text."""
    command = [sys.executable, "-m", module, "generate", "--model", str(model)]
    command += ["--prompt", f"Proofread this message.\n{TEXT}", "--max-tokens", "32"]
    started = time.perf_counter()
    with _started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        output = b""
        while not output.removeprefix(_RULE).strip(b"=\n"):
            read = os.read(process.stdout.fileno(), 1)
            if not read:
                raise RuntimeError(f"{' '.join(command)} ended without text")
            output += read
        return time.perf_counter() - started


def seconds_to_tokens(arguments: list[str], model: str) -> tuple[float, float]:
    """Seconds from the start of a server to its first token, and of a second request to its own."""
    ours, terminal = pty.openpty()  # without one, writing-tools would read standard input
    start = time.perf_counter()
    command = [sys.executable, "-m", "specstream_mlx", *arguments]
    try:
        with _started(
            command, stdin=terminal, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            for line in process.stderr:
                if match := re.search(rb"at http://127\.0\.0\.1:(\d+)", line):
                    port = int(match[1])
                    break
            else:
                raise RuntimeError(f"{' '.join(arguments)} ended without an address")
            if model != "base":
                for path in ("/", "/main.js", "/style.css"):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=300).read()
            _first_token(port, model)
            first = time.perf_counter() - start
            again = time.perf_counter()
            _first_token(port, model)
            return first, time.perf_counter() - again
    finally:
        os.close(ours)
        os.close(terminal)


@contextmanager
def _started(command: list[str], **pipes: Any) -> Iterator[Any]:
    """A process with an empty cache, which is interrupted in the end."""
    with tempfile.TemporaryDirectory() as cache:
        process = subprocess.Popen(command, env=os.environ | {"XDG_CACHE_HOME": cache}, **pipes)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def _first_token(port: int, model: str) -> None:
    """Ask for a text, and return when its first token is there."""
    said = [{"role": "user", "content": TEXT}]
    body = {"model": model, "messages": said, "max_tokens": 32, "stream": True}
    address = f"http://127.0.0.1:{port}/v1/chat/completions"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                if any(choice["delta"].get("content") for choice in choices):
                    return
    raise RuntimeError("the server answered without text")


def main(
    runs: int = option(5, integer(1), "Runs of each, after one that does not count."),
    output: Path = OUTPUT,
) -> None:
    """Measure how soon the commands write."""
    base = demonstration.base_path()
    seconds: dict[str, list[tuple[float, ...]]] = {way: [] for way in (*GENERATING, *SERVING)}
    for number in track(range(runs + 1), "first tokens"):
        for way, times in seconds.items():
            if way in SERVING:
                taken: tuple[float, ...] = seconds_to_tokens(*SERVING[way])
            else:
                taken = (seconds_to_text(GENERATING[way], base),)
            if number:  # the first run reads files that the others find in memory
                times.append(taken)
    rows: list[dict[str, Any]] = []
    for way, times in seconds.items():
        firsts, *agains = zip(*times, strict=True)
        row = {"command": way, "median": statistics.median(firsts)}
        row |= {"least": min(firsts), "most": max(firsts)}
        rows.append(row | {"again": statistics.median(agains[0]) if agains else None})
    facts = device.describe() | {"runs": runs}
    lines = [f"{measured_on(facts)}; medians of {runs} runs, caches empty.", ""]
    lines += table(COLUMNS, rows)
    values = {"facts": facts, "rows": rows, "times": seconds}
    print(write_report(output, f"first-token-{machine_suffix(facts)}", values, lines))


if __name__ == "__main__":
    program(main)()
