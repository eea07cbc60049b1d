"""Published trees hold the ranks that they name; each method is counted and timed in its shapes."""

import itertools
import json

import numpy as np
import pytest
from command_line import run_program
from draft_heads import model_with_head, write
from random_models import PROMPT, assert_lossless, plain_tokens, request
from tiny_models import stream_adapter_directory

from benchmarks.rival_methods import Method
from benchmarks.runner import Run
from benchmarks.studies import tree_shapes
from benchmarks.studies.tree_shapes import (
    BITA_12,
    EAGLE_25,
    MEDUSA_63,
    Published,
    PublishedTrees,
    call_seconds,
    drafting_in,
    picks_of,
    shapes_of,
)
from specstream_mlx.drafting.settings import Drafters
from specstream_mlx.engine.tree import root_only
from specstream_mlx.loop import decode

SMALL = Published({(): 3, (0,): 2, (2,): 1, (0, 1): 2, (2, 0): 1})


@pytest.mark.parametrize(
    ("shape", "by_depth", "widest"),
    [
        (MEDUSA_63, [10, 28, 23, 2], 10),
        (EAGLE_25, [4, 8, 8, 3, 2], 4),
        (BITA_12, [5, 4, 3], 5),
        (SMALL, [3, 3, 3], 3),
    ],
)
def test_a_published_shape_has_so_many_nodes_at_each_depth(shape, by_depth, widest):
    counts = [0] * shape.depth
    for ranks, children in shape.children.items():
        counts[len(ranks)] += children
        assert not ranks or ranks[-1] < shape.children[ranks[:-1]]  # a node of the tree itself
    assert counts == by_depth and shape.nodes == sum(by_depth) and shape.width == widest


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("medusa, own heads", SMALL),
        ("hydra", SMALL),
        ("eagle", EAGLE_25),
        ("eagle3, some tokens", EAGLE_25),
    ],
)
def test_trees_hold_the_guesses_of_the_ranks_named(name, shape, tmp_path, monkeypatch):
    model, logits_of = model_with_head(name, tmp_path / "head")
    grown, grow = [], PublishedTrees.grow

    def noted(self, root, guesses, *verified):
        grown.append(grow(self, root, guesses, *verified))
        return grown[-1]

    monkeypatch.setattr(PublishedTrees, "grow", noted)
    written = []
    asked = request(PROMPT, drafting_in(shape)(model), max_tokens=8)
    for step in itertools.islice(decode(model, asked), 4):
        written += step.tokens
        tree, text = grown[-1], [*PROMPT, *written]
        assert tree.tokens[0] == text[-1] and len(tree) == 1 + shape.nodes
        ranks, paths = {0: ()}, {0: ()}
        for node in range(len(tree)):
            children = np.flatnonzero(tree.parents == node).tolist()
            assert len(children) == shape.children.get(ranks[node], 0)
            if not children:
                continue
            logits, tokens = logits_of(text, paths[node])
            best = np.sort(logits)[::-1]
            place = {token: number for number, token in enumerate(tokens)}
            for rank, child in enumerate(children):
                token = int(tree.tokens[child])
                assert logits[place[token]] == pytest.approx(best[rank], abs=1e-3)
                ranks[child], paths[child] = (*ranks[node], rank), (*paths[node], token)
    assert_lossless(model.model, PROMPT, written, plain_tokens(model.model, PROMPT, len(written)))


def test_no_shape_is_deeper_than_its_head(tmp_path):
    model, _ = model_with_head("medusa, own heads", tmp_path / "head")  # three heads
    nobody = Drafters(drafter=["none"])
    shapes = shapes_of(Method("medusa", nobody, True, "medusa"), model)
    trees = ["8 nodes", "16 nodes", "32 nodes", "60 nodes"]
    assert list(shapes) == ["chain of 2", "chain of 3", *trees]
    model, _ = model_with_head("eagle", tmp_path / "eagle")
    shapes = shapes_of(Method("eagle", nobody, True, "eagle"), model)
    assert {"chain of 6", "EAGLE-1's 25", "EAGLE-2's 59"} <= shapes.keys()
    chain = shapes["chain of 2"]
    assert (chain.num_streams, chain.tree_width, chain.tree_size) == (2, 1, 2)  # two levels run
    plan = chain.plans(model.guessing)(root_only(0))
    assert len(plan.expand) == 1


def test_a_calls_time_begins_behind_the_second_one():
    def run(lengths, arrivals):
        calls = [(tuple(range(length)), None) for length in lengths]
        return Run([0] * sum(lengths), "", len(lengths), 1.0, arrivals=arrivals, calls=calls)

    assert call_seconds(run([1, 2, 1, 2], [0, 9, 9, 10, 12, 12])) == 1.5
    assert call_seconds(run([1, 2], [0, 9, 9])) is None
    plain = Run([0] * 4, "", 4, 1.0, arrivals=[0, 3, 4, 6])
    assert call_seconds(plain) == 1.5


def test_picks_are_the_most_tokens_a_call_and_the_fastest():
    def row(shape, accepted, **timed):
        return {"method": "m", "shape": shape, "accepted": accepted} | timed

    rows = [row("chain of 2", 1.5, speed=1.2), row("8 nodes", 2.0, speed=0.9)]
    [pick] = picks_of(rows)
    assert (pick["most"], pick["speed_of_most"]) == ("8 nodes", 0.9)
    assert (pick["fastest"], pick["speed"]) == ("chain of 2", 1.2)
    [counted] = picks_of([row("chain of 2", 1.5), row("8 nodes", 2.0)])
    assert counted["most"] == "8 nodes" and counted["fastest"] is None


@pytest.fixture
def prompt_tokens(base, tmp_path):
    """Three prompt tokens: embeddings alone, which pass all layers."""
    fields = {"num_streams": 3, "stream_init": "embedding", "stream_mlp": "base", "pruner_rank": 0}
    return stream_adapter_directory(tmp_path / "ppd", base, num_msa_layers=4, **fields)


@pytest.fixture
def valid(tmp_path):
    lines = [{"prompt": f"send the report {n}", "completion": "it is noon"} for n in range(5)]
    path = tmp_path / "valid.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def head(base, tmp_path):
    """Four random Medusa heads for the tiny Llama, with its LM head."""
    rng = np.random.default_rng(0)
    tensors = {}
    for i in range(4):
        tensors[f"{i}.0.linear.weight"] = rng.normal(0, 0.1, (64, 64)).astype(np.float32)
        tensors[f"{i}.0.linear.bias"] = np.zeros(64, np.float32)
    return write(tmp_path / "medusa", tensors)


def test_the_command_counts_first_and_times_where_it_went_on(
    base, streams, head, prompt_tokens, valid, tmp_path
):
    def run(*more):
        run_program(
            tree_shapes.main,
            *("--model", base, "--adapter-path", streams, "--draft-head", head),
            *("--draft-head", prompt_tokens),
            *("--draft-model", base, "--valid", valid, "--items", 2, "--max-tokens", 12),
            *("--runs", tmp_path / "runs.jsonl", "--output", tmp_path, *more),
        )
        return next(tmp_path.glob("tree-shapes-*.md")).read_text()

    said = run("--timed-items", 0)
    assert "Tokens a call:" in said and "Speed" not in said
    counted = (tmp_path / "runs.jsonl").read_text()
    assert "Speed, tokens in the time" in run("--timed-items", 1)
    assert (tmp_path / "runs.jsonl").read_text() == counted  # nothing was counted again
    values = json.loads(next(tmp_path.glob("tree-shapes-*.json")).read_text())
    rows = {(row["method"], row["shape"]): row for row in values["rows"]}
    shapes = {method: {shape for name, shape in rows if name == method} for method, _ in rows}
    sizes = {"8 nodes", "16 nodes", "32 nodes", "60 nodes"}
    assert shapes["medusa"] == sizes | {f"chain of {n}" for n in (2, 3, 4)} | {"Medusa's 63"}
    assert shapes["draft-model"] == sizes | {f"chain of {n}" for n in (2, 3, 4, 5, 6)}
    assert shapes["streams"] == shapes["medusa"] - {"Medusa's 63"}
    assert shapes["ppd"] == sizes | {"chain of 2", "chain of 3", "BiTA's 12"}
    assert all(row["same_output_as_plain"] == row["items"] == 2 for row in rows.values())
    # The base is its own draft model: all of a chain is right.
    assert rows["draft-model", "chain of 2"]["accepted"] > 2.5
    assert rows["draft-model", "chain of 6"]["accepted"] > 4
    for row in rows.values():
        assert row["speed"] == pytest.approx(row["accepted"] / row["cost"]) and row["cost"] > 0
    assert {pick["method"] for pick in values["picks"]} == shapes.keys()
