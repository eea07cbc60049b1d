"""The study of the streams' heads times every kind of head."""

import json

import typer
from typer.testing import CliRunner

from benchmarks.studies import stream_heads


def test_every_kind_has_a_row(tmp_path):

    app = typer.Typer()
    app.command()(stream_heads.main)
    options = "--random-llama 3x128 --vocabulary 512 --draft-vocabulary 256 --runs 1"
    result = CliRunner().invoke(app, [*options.split(), "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    values = json.loads(next(tmp_path.glob("*.json")).read_text())
    kinds = {(row["head"], row["tokens"]) for row in values["rows"]}
    heads = ("plain", "conditioned, all tokens", "conditioned, shortlists")
    expected = {(head, tokens) for head in heads for tokens in (512, 256)}
    assert kinds == expected | {(stream_heads.NO_STREAMS, 0)}
    assert all(row["ms"] > 0 for row in values["rows"])
