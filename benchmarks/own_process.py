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


def run_module(module: str, *arguments: object, torch_first: bool = False) -> str:
    """What ``python -m module`` prints with these arguments.

    Args:
        module: its full name.
        arguments: of the command line.
        torch_first: import PyTorch before OpenBLAS is loaded for MLX, or it leaves its products to
            that, and takes several times as long.
    """
    start = ["-m", module]
    if torch_first:
        start = ["-c", f"import torch, runpy; runpy.run_module({module!r}, run_name='__main__')"]
    command = [sys.executable, *start, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measured_by(module: str, *arguments: object, torch_first: bool = False) -> dict[str, Any]:
    """The JSON object that ``python -m module`` prints, see ``run_module``."""
    return json.loads(run_module(module, *arguments, torch_first=torch_first))
