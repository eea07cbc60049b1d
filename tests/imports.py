"""Which modules the project has, and which of them each imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

import specstream_mlx

CLONE = Path(__file__).parents[1]

BESIDE = ("convert", "apps", "benchmarks")
"""Packages that lie beside ``specstream_mlx`` in a clone, and are parts of it when installed."""

Module = tuple[str, ...]
"""A module's name in parts, without ``specstream_mlx``."""

_AS_A_PROGRAM = "if __name__ == '__main__'"


def _modules() -> Iterator[tuple[Module, Path]]:
    for place in ("specstream_mlx", *BESIDE):
        for path in (CLONE / place).rglob("*.py"):
            parts = path.relative_to(CLONE).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            yield parts if place in BESIDE else parts[1:], path


MODULES = {module: path for module, path in _modules() if module and module[-1] != "__main__"}
"""Files by module; without those that are programs and no more."""


def imported(module: Module) -> Iterator[Module]:
    """The modules that a module imports, inside functions too, but not as a program of its own."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module[:-1]
    tree = ast.parse(path.read_text())
    tree.body = [part for part in tree.body if not ast.unparse(part).startswith(_AS_A_PROGRAM)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module.split(".") if node.module else []
            if node.level:
                start = ["specstream_mlx", *package[: len(package) - node.level + 1], *start]
            names = [[*start, alias.name] for alias in node.names]
        else:
            continue
        for first, *rest in names:
            if first in BESIDE:
                yield _module_of((first, *rest))
            elif first == "specstream_mlx" and rest:
                yield _module_of(tuple(rest))


def _module_of(name: Module) -> Module:
    """The module that has the name, which may be one of the public ones or a module's own."""
    if name[0] in specstream_mlx.__all__:
        name = tuple(getattr(specstream_mlx, name[0]).__module__.split(".")[1:])
    return next(name[:size] for size in range(len(name), 0, -1) if name[:size] in MODULES)
