"""Measurements in processes of their own, so that each one's peak of memory is its own."""

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from specstream_mlx import UserError


def peak_bytes() -> int:
    """This process's peak resident memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_module(module: str, *arguments: object, torch_first: bool = False) -> None:
    """Run ``python -m module`` with these arguments.

    Args:
        module: its full name.
        arguments: of the command line.
        torch_first: import PyTorch before OpenBLAS is loaded for MLX, or it leaves its products to
            that, and takes several times as long.

    Raises:
        UserError: it failed, and has said why.
    """
    start = ["-m", module]
    if torch_first:
        start = ["-c", f"import torch, runpy; runpy.run_module({module!r}, run_name='__main__')"]
    command = [sys.executable, *start, *map(str, arguments)]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise UserError(f"{module} ended with {done.returncode}, see above")


def in_own_process(
    function: Callable[..., Any], *arguments: object, torch_first: bool = False
) -> Any:
    """Call a module's function in a new process; what it prints goes to standard error.

    Args:
        function: of a module, also of the one that is run.
        arguments: those that JSON can hold, as is the result; paths arrive as strings.
        torch_first: see ``run_module``.
    """
    module = function.__module__
    if module == "__main__":
        spec = sys.modules[module].__spec__
        assert spec is not None  # of a program that is run by its module's name
        module = spec.name
    call = json.dumps([module, function.__name__, arguments], default=str)
    start = "import torch; " if torch_first else ""
    command = [sys.executable, "-c", f"{start}from {__name__} import answer; answer()"]
    done = subprocess.run(command, input=call, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def answer() -> None:
    """Make the call that standard input describes, and print what it returns."""
    module, name, arguments = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        value = getattr(import_module(module), name)(*arguments)
    print(json.dumps(value))
