"""The benchmark on typed text: its rows, and its sentence about the least of them."""

import json

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import typed_text


@pytest.mark.usefixtures("toy")
@pytest.mark.slow
def test_every_kind_of_text_has_a_row_beside_a_control(tmp_path):
    app = typer.Typer()
    app.command()(typed_text.main)
    options = "--texts dev --tasks sql --items 1 --prose 1 --rounds 1 --max-tokens 24".split()
    result = CliRunner().invoke(app, [*options, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    kinds = sorted((row["mode"], row["kind"]) for row in rows)
    assert kinds == [(mode, kind) for mode in ("lossless", "shared") for kind in ("prose", "sql")]
    assert all(row["same_output_as_plain"] == row["items"] == 1 for row in rows)
    assert all(row["control"] > 0 for row in rows)


def row(kind, speedup, least, control_least, mode="lossless"):
    return {
        "mode": mode,
        "kind": kind,
        "speedup": speedup,
        "least": least,
        "control_least": control_least,
    }


def test_the_summary_names_the_least_kind_and_the_least_text_beside_the_control():
    rows = [row("sql", 1.0, None, None), row("concise", 4.0, 0.9, 0.8), row("prose", 1.5, 1.2, 0.7)]
    assert typed_text.summary(rows) == [
        "Lossless, tasks: 2.00x in the geometric mean, sql least with 1.00x, no text of 30 tokens "
        "or more below 0.90x (the baseline against itself: 0.80x).",
        "Lossless, prose: 1.50x in the geometric mean, no text of 30 tokens or more below 1.20x "
        "(the baseline against itself: 0.70x).",
    ]
