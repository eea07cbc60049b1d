"""Modules import only from floors below their own (ARCHITECTURE.md lists them)."""

import re
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
from imports import MODULES, imported

FLOORS = [
    {"errors"},
    {"options"},
    {"files", "stream_config"},
    {"terminal"},
    {"hardware", "models"},
    {"distributed"},
    {"bundled", "engine", "adapters"},
    {"heads", "vocabulary"},
    {"control_tokens", "thoughts"},
    {"grammar", "loading", "prompts"},
    {"drafting"},
    {"generation"},
    {"train", "serve"},
    {"convert"},
    {"demonstration"},
    {"apps", "convert.demo_model"},
    {"benchmarks"},
    {"cli", "benchmarks.prediction"},
]
"""Files and packages, lowest first; those of one floor know nothing of each other. A package within
another may have a floor of its own."""

LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


def part_of(module):
    """The name in ``FLOORS`` that a module belongs to."""
    inner, outer = ".".join(module[:2]), module[0]
    return inner if inner in LEVEL else outer


def test_the_architecture_lists_these_floors():
    page = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\d+\. (`.*`)$", page.split("\n## Floors\n")[1], re.M)
    assert [set(re.findall(r"`([\w.]+)`", line)) for line in lines] == FLOORS


@pytest.mark.parametrize("module", sorted(MODULES), ids=".".join)
def test_imports_come_from_floors_below(module):
    own = part_of(module)
    for target in imported(module):
        other = part_of(target)
        assert other == own or LEVEL[other] < LEVEL[own], f"imports {'.'.join(target)}"


@pytest.mark.parametrize("module", sorted(MODULES), ids=".".join)
def test_what_a_module_imports_is_there(module):
    """In modules, too, that no other test runs."""
    import_module(".".join(("specstream_mlx", *module)))


def test_no_module_imports_itself_by_way_of_others():
    below = {module: set(imported(module)) for module in MODULES}
    assert ("benchmarks", "speedup") in below["cli", "benchmark"]
    assert ("benchmarks", "runner") in below["benchmarks", "speedup"]
    assert ("drafting", "settings") in below["benchmarks", "speedup"]  # by its public name
    TopologicalSorter(below).prepare()  # which names a cycle
