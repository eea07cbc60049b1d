"""Modules import only from floors below their own (the map in specstream_mlx/README.md)."""

import ast
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[1]
ROOT = CLONE / "specstream_mlx"

FLOORS = [
    {"config"},
    {"arguments", "checked_files", "staging"},
    {"hardware", "models"},
    {"bundled", "engine", "adapters"},
    {"loading", "prompts", "drafting"},
    {"autotune", "demonstration", "prompt_cache_files", "refused", "inspection"},
    {"prompt_cache"},
    {"loop"},
    {"acceptance", "generation", "batch"},
    {"apps", "benchmarks", "train"},
    {"cli"},
]
"""Files and packages of ``specstream_mlx``, lowest first; those of one floor know nothing of each
other. ``apps`` and ``benchmarks`` lie beside it in a clone, and the command line runs them."""

LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(path): path for path in ROOT.rglob("*.py") if module_of(path)}
BESIDE = {
    (name, *path.relative_to(CLONE / name).with_suffix("").parts): path
    for name in ("apps", "benchmarks")
    for path in (CLONE / name).rglob("*.py")
    if path.name != "__init__.py"
}


AS_A_PROGRAM = "if __name__ == '__main__'"


def imported(module, path):
    """The modules that ``path`` imports, inside functions too, but not as a program of its own."""
    package = module if path.name == "__init__.py" else module[:-1]
    tree = ast.parse(path.read_text())
    tree.body = [part for part in tree.body if not ast.unparse(part).startswith(AS_A_PROGRAM)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = (*base, *(node.module or "").split(".")) if node.module else base
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("specstream_mlx."):
            target = tuple(node.module.split(".")[1:])
        else:
            continue
        for name in node.names:
            inside = (*target, name.name)
            yield inside if inside in MODULES or inside in BESIDE else target


@pytest.mark.parametrize("module", sorted(set(MODULES) - {("__main__",)}), ids=".".join)
def test_imports_come_from_floors_below(module):
    for target in imported(module, MODULES[module]):
        if target and target[0] not in ("convert", module[0]):
            assert LEVEL[target[0]] < LEVEL[module[0]], f"imports {'.'.join(target)}"


def test_no_module_imports_itself_by_way_of_others():
    everything = MODULES | BESIDE
    below = {module: set(imported(module, path)) for module, path in everything.items()}
    assert ("benchmarks", "speedup") in below["cli", "benchmark"]
    assert ("benchmarks", "runner") in below["benchmarks", "speedup"]
    done = set()

    def visit(module, path):
        assert module not in path, " -> ".join(map(".".join, (*path, module)))
        if module in below and module not in done:
            for target in below[module]:
                visit(target, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
