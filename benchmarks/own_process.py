"""Measurements in processes of their own, so that each one's peak of memory is its own."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def in_own_process(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a module's function in a new process; what it prints goes to standard error."""
    module = function.__module__
    if module == "__main__":
        spec = sys.modules[module].__spec__
        assert spec is not None  # of a program that is run by its module's name
        module = spec.name
    call = json.dumps([module, function.__name__, arguments], default=str)
    command = [sys.executable, "-c", f"from {__name__} import answer; answer()"]
    done = subprocess.run(command, input=call, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def answer() -> None:
    """Make the call that standard input describes, and print what it returns."""
    module, name, arguments = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        value = getattr(import_module(module), name)(*arguments)
    print(json.dumps(value))
