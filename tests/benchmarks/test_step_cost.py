"""The benchmark of a step's cost: what it divides by, and a short run on a random Llama."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import step_cost
from benchmarks.bare_forwards import BareForwards, Parts, rows_of
from benchmarks.random_llama import Size, random_llama, with_streams
from specstream_mlx import DraftSettings, UserError, bundled
from specstream_mlx.drafting.streams import full_tree

TREE = full_tree(1, np.arange(8).reshape(2, 4), 2)  # 7 nodes, 3 of them with children


def models():
    return dict(with_streams(*random_llama(Size(4, 64), 50)))


def test_rows_of_a_step():
    found = models()
    lossless, shared = found["untrained, lossless"], found["untrained, shared"]
    assert rows_of(lossless, TREE, DraftSettings(speculation=False)) == Parts(7, 7, (7,))
    assert rows_of(lossless, TREE, DraftSettings()) == Parts(7, 7, (7,), deferred=4)
    assert rows_of(lossless, TREE, DraftSettings(deferred=False)) == Parts(7, 35, (7, 4))
    assert rows_of(shared, TREE, DraftSettings(max_nodes=5)) == Parts(7, 25, (3, 5, 4))


def test_bare_forwards_leave_the_caches_as_they_were():
    model = models()["untrained, lossless"]
    bare = BareForwards(model.model, 3, [1, 2, 3])
    for _ in range(2):
        assert bare.seconds(Parts(7, 35, (7, 4), 4)) > 0
        assert bare.products(Parts(7, 35, (7, 4), 4)) > 0
        assert [cache.offset for cache in bare.caches] == [3] * 4


@pytest.mark.parametrize("text", ["8", "8x", "1x64", "8x100", "axb"])
def test_a_wrong_size_is_refused(text):
    with pytest.raises(UserError, match="expected at least 2 layers"):
        Size.parse(text)


@pytest.mark.skipif(not bundled.adapter_names(), reason="its prompts need the bundled tokenizer")
def test_a_short_run(tmp_path, monkeypatch):
    monkeypatch.setattr(step_cost, "PLAIN_TOKENS", 4)
    step_cost.main(random="2x64", vocabulary=4096, items=1, steps=4, output=tmp_path)
    (path,) = tmp_path.glob("step-cost-random-2x64-*.json")
    result = json.loads(path.read_text())
    assert [row["method"] for row in result["rows"][-3:]] == [
        "shared, chain",
        "shared, tree",
        "shared, tree, pruned",
    ]
    for row in result["rows"]:
        assert row["step"] > 0
        assert row["overhead"] == pytest.approx(1 - 1 / row["ratio"], abs=2e-3)
    assert result["plain_decoding"]["rate_ratio"] > 0
    assert "Plain decoding" in path.with_suffix(".md").read_text()


def test_what_does_not_fit_is_refused_before_anything_is_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(step_cost, "measure", None)
    built = typer.Typer()
    built.command()(step_cost.main)
    for flags, sentence in (
        (["--random-llama", "8"], "the random Llama is '8'"),
        (["--model", str(tmp_path)], "found one of --model and --streams"),
        (["--adapter", str(tmp_path / "none")], "none"),
    ):
        result = CliRunner().invoke(built, [*flags, "--output", str(tmp_path)])
        assert result.exit_code == 2 and not list(tmp_path.iterdir())
        assert result.stderr.startswith("error: ") and sentence in result.stderr
