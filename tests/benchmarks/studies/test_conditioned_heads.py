"""The study of conditioned heads takes the heads off the bundled adapters."""

import json

import typer
from typer.testing import CliRunner

from benchmarks.studies import conditioned_heads


def run(tmp_path, options):
    app = typer.Typer()
    app.command()(conditioned_heads.main)
    return CliRunner().invoke(app, [*options.split(), "--output", str(tmp_path)])


def test_the_same_text_with_a_head_and_without(tmp_path):
    result = run(tmp_path, "--tasks sql --items 2 --timed 0 --texts dev --max-tokens 24")
    assert result.exit_code == 0, result.output
    rows = json.loads(next(tmp_path.glob("*.json")).read_text())["rows"]
    assert [row["head"] for row in rows] == ["plain", "conditioned"]
    assert all(row["same_output_as_plain"] == 2 for row in rows)
    assert rows[0]["chain"] != rows[1]["chain"]


def test_adapters_without_a_head_are_refused(tmp_path):
    result = run(tmp_path, "--tasks proofread --items 1 --timed 0")
    assert result.exit_code == 2
    assert "plain heads" in result.output
    assert not list(tmp_path.iterdir())
