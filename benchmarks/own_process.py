"""Measurements in processes of their own, so that each one's peak of memory is its own."""

import json
import resource
import subprocess
import sys
from typing import Any


def peak_bytes() -> int:
    """This process's peak resident memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_module(module: str, *arguments: object) -> str:
    """What ``python -m module`` prints with these arguments."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measured_by(module: str, *arguments: object) -> dict[str, Any]:
    """The JSON object that ``python -m module`` prints."""
    return json.loads(run_module(module, *arguments))
