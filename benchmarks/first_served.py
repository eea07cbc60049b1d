"""Time from the start of a server, and of the writing tools' page, to the first token of a text.

    python -m benchmarks.first_served                        # 5 runs of each

Each run is a fresh process. As soon as it prints its address it is asked: the page for its files
and then, as the page does, for a proofread text; the server for a text of ``base``. What counts is
the time from the start of the process to the first token; a second request shows what loading was.
"""

import http.client
import json
import os
import pty
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from specstream_mlx import demonstration
from specstream_mlx.hardware import device
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, table, write_report

WAYS = {
    "specstream-mlx writing-tools": (["writing-tools", "--no-browser"], "base:proofread"),
    "specstream-mlx serve": (["serve", "--port", "0"], "base"),
}
"""Commands, and the model that is asked."""

TEXT = "Hi Ana, can you sned me the reports on monday"

COLUMNS = {
    "command": "{command}",
    "address printed, s": "{address:.2f}",
    "first token, s": "{first:.2f}",
    "least": "{least:.2f}",
    "most": "{most:.2f}",
    "first token of the second request, s": "{again:.2f}",
}


def seconds_to_tokens(arguments: list[str], model: str) -> tuple[float, float, float]:
    """Seconds to the address, to the first token, and of a second request to its first token.

    Raises:
        RuntimeError: the command ended, or a request was refused.
    """
    ours, terminal = pty.openpty()  # without one, writing-tools would read standard input
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "specstream_mlx", *arguments],
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr or ():
            if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise RuntimeError(f"{' '.join(arguments)} ended without an address")
        address = time.perf_counter() - start
        if model != "base":
            for path in ("/", "/main.js", "/style.css"):
                _get(int(found[1]), path)
        _first_token(int(found[1]), model)
        first = time.perf_counter() - start
        again = time.perf_counter()
        _first_token(int(found[1]), model)
        return address, first, time.perf_counter() - again
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        os.close(ours)
        os.close(terminal)


def _get(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", path)
    if connection.getresponse().status != 200:
        raise RuntimeError(f"{path} was refused")
    connection.close()


def _first_token(port: int, model: str) -> None:
    """Ask for a text, and return when its first token is there."""
    said = [{"role": "user", "content": TEXT}]
    body = {"model": model, "messages": said, "max_tokens": 32, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    reply = connection.getresponse()
    for line in reply:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if any(choice["delta"].get("content") for choice in event["choices"]):
                connection.close()
                return
    raise RuntimeError(f"status {reply.status} and no text")


def main(
    runs: int = option(5, integer(1), "Runs of each."),
    output: Path = OUTPUT,
) -> None:
    """Measure how soon the server and the page write."""
    demonstration.base_path()
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for _ in track(range(runs), "first tokens"):
        for way, times in found.items():
            times.append(seconds_to_tokens(*WAYS[way]))
    rows: list[dict[str, Any]] = []
    for way, times in found.items():
        addresses, firsts, agains = zip(*times, strict=True)
        rows.append(
            {
                "command": way,
                "address": statistics.median(addresses),
                "first": statistics.median(firsts),
                "least": min(firsts),
                "most": max(firsts),
                "again": statistics.median(agains),
            }
        )
    facts = device.describe() | {"runs": runs}
    lines = [f"{measured_on(facts)}; medians of {runs} runs.", "", *table(COLUMNS, rows)]
    values = {"facts": facts, "rows": rows, "times": found}
    print(write_report(output, f"first-served-{machine_suffix(facts)}", values, lines))


if __name__ == "__main__":
    program(main)()
