"""The papers' figures as tables: a line for every shape, and the adapters that are found."""

import json

import pytest
from command_line import run_program

from benchmarks import paper_figures
from benchmarks.runner import Base


@pytest.mark.slow
def test_full_trees_of_every_shape_in_both_modes(tmp_path, monkeypatch, toy):
    monkeypatch.setattr(paper_figures, "Base", lambda *given: Base(*given, fastest_baseline=False))
    monkeypatch.setattr(paper_figures, "GAMMAS", (2,))
    monkeypatch.setattr(paper_figures, "WIDTHS", (1, 3))
    flags = "--items 1 --max-tokens 12 --max-nodes 4 --output".split()
    run_program(paper_figures.main, *flags, tmp_path)
    (file,) = tmp_path.glob("figure-streams-*.json")
    rows = json.loads(file.read_text())["rows"]
    ways = ["width 1", "width 1, pruned", "width 3", "width 3, pruned"]
    named = [(row["mode"], row["method"]) for row in rows]
    assert named == [(mode, way) for mode in ("lossless", "shared") for way in ways]
    nodes = {(row["mode"], row["method"]): row["nodes"] for row in rows}
    for mode in ("lossless", "shared"):
        assert nodes[mode, "width 1"] <= 2 < nodes[mode, "width 3"] <= 3 + 9
        assert nodes[mode, "width 3, pruned"] <= 3  # and the root
