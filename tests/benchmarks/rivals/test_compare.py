"""``python -m benchmarks.rivals``: what competes, what is written, and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import result_of, succeeded
from draft_heads import write as write_head
from tiny_models import stream_adapter_directory

from benchmarks.rivals import compare
from benchmarks.rivals.compare import main
from benchmarks.rivals.methods import Sources, methods_of
from benchmarks.rivals.report import means_of
from benchmarks.rivals.suffix import Answers
from benchmarks.rivals.texts import classes_of
from benchmarks.runner import MLX_LM
from specstream_mlx import UserError, bundled
from specstream_mlx.drafting.settings import names_of

BOTH = "streams + lookup"
QUESTIONS = [(7, "coding", ["send the report", "send it again"]), (9, "qa", ["is it noon"])]


def test_every_method_competes_alone_that_has_what_it_needs():
    sources = Sources(datastore="file", heads={"medusa": SimpleNamespace(head=None)})
    usual = ["plain", "streams", BOTH, "lookup", "pld", "suffix", "lookahead", "rest"]
    assert [m.name for m in methods_of(sources)] == [*usual, "medusa", "medusa + lookup"]
    chosen = methods_of(sources, "rest,streams + pld,medusa")
    proposers = [names_of(m.proposers(Answers())) for m in chosen]
    assert proposers == [["Retrieval"], ["PromptLookup"], []]
    assert [method.in_trees(4, Answers()).num_streams for method in chosen] == [0, None, None]
    model = SimpleNamespace(layers=[])
    [both] = methods_of(Sources(draft_model=model), "draft-model + lookup")
    assert names_of(both.proposers(Answers())) == ["lookup", "draft-model"] and not both.guesses
    with pytest.raises(UserError, match="'draft-model' needs a model, expected --draft-model"):
        methods_of(Sources(), "draft-model + lookup")
    with pytest.raises(UserError, match="the class qa needs --questions, expected both"):
        classes_of("qa", [], False)


def test_methods_take_turns_and_all_write_what_mlx_lm_writes(base, streams, here, monkeypatch):
    """Heads do not know of the LoRA under them, nor do texts of one adapter of another's rows."""
    rng, tensors = np.random.default_rng(0), {}
    for number in range(2):  # Medusa heads with LM heads of their own
        tensors[f"{number}.0.linear.weight"] = rng.normal(0, 0.1, (64, 64)).astype(np.float32)
        tensors[f"{number}.0.linear.bias"] = np.zeros(64, np.float32)
        tensors[f"{number}.1.weight"] = rng.normal(0, 0.1, (320, 64)).astype(np.float32)
    head = write_head(here / "medusa", tensors)
    adapters = {
        name: stream_adapter_directory(here / name, base, lora_rank=4, seed=seed)
        for seed, name in enumerate(("sql", "friendly"))
    }
    monkeypatch.setattr(compare, "fitting_adapters", lambda config: adapters)
    monkeypatch.setattr(bundled, "adapter_path", adapters.get)
    asked = ("--model", base, "--adapter-path", streams, "--draft-head", head, "--output", ".")
    asked += ("--questions", "q.jsonl", "--classes", "spec-bench,prose,unpredictable,adapters")
    asked += ("--methods", f"plain,{BOTH},pld,suffix,lookahead,medusa", "--max-tokens", 24)
    result = succeeded(result_of(main, *asked, "--runs", "runs"))
    rows = json.loads(next(here.glob("rivals-*.json")).read_text())["rows"]
    assert {row["class"] for row in rows} >= {"mt_bench", "qa", "prose", "unpredictable"}
    assert {row["group"] for row in rows} >= {"adapters"}
    assert all(row["same_output_as_plain"] == row["items"] for row in rows)
    timed = {row["method"] for row in rows if "speedup" in row}
    assert timed == {MLX_LM, "plain", BOTH, "pld", "suffix", "lookahead", "medusa"}
    trees = {row["method"] for row in rows if row["nodes"] == 8}
    assert trees == {BOTH, "pld", "suffix", "lookahead", "medusa"}
    assert next(row for row in rows if row["class"] == "mt_bench")["items"] == 2  # turns
    assert "Tokens a call in trees of 8 nodes:" in result.stdout


def test_means_are_of_the_methods_that_took_part_in_all_classes():
    accepted = {"lookup": (2.0, 0.5), "streams": (1.0, 1.44), "llama.cpp": (9.0, 1.0)}
    same = {"group": "typed", "temperature": 0.0, "nodes": 8, "items": 1, "same": True}
    rows = [
        {**same, "class": name, "method": method, "accepted": value, "same_output_as_plain": 1}
        for method, values in (accepted | {"medusa": (1.5,)}).items()
        for name, value in zip(("sql", "reply"), values, strict=False)
    ]
    means = means_of(rows, "accepted")
    assert list(means) == ["streams", "lookup", "llama.cpp"]  # another program competes for nothing
    assert list(means.values()) == pytest.approx([1.2, 1.0, 3.0])
