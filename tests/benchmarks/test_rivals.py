"""``benchmark rivals``: what competes, what is written, and how it goes on where it was stopped."""

import importlib
import json
import os
import statistics
from pathlib import Path

import command_line
import numpy as np
import pytest
from draft_heads import write as write_head
from mlx_lm.utils import load_tokenizer
from random_models import request
from tiny_models import stream_adapter_directory

from benchmarks.rival_methods import medusa_parameters, methods_of, mounted_heads
from benchmarks.rival_texts import SQL_NODES, classes_of
from benchmarks.rivals_page import by_parameters, lines, strips
from benchmarks.rivals_report import (
    by_class,
    depths_of,
    means_of,
    ranked,
    summaries,
    tables_of,
)
from benchmarks.runner import MLX_LM, ONE_TOKEN
from specstream_mlx import DraftSettings, UserError, bundled, load
from specstream_mlx.drafting.settings import Drafters
from specstream_mlx.loop import decode

BOTH = "streams + lookup"
QUESTIONS = [(7, "coding", ["send the report", "send it again"]), (9, "qa", ["is it noon"])]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a file of questions."""
    names = ("question_id", "category", "turns")
    given = [json.dumps(dict(zip(names, one, strict=True))) for one in QUESTIONS]
    (tmp_path / "q.jsonl").write_text("\n".join(given))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def head(base):
    """Random Medusa heads for the tiny Llama, two with LM heads of their own."""
    rng = np.random.default_rng(0)
    tensors = {}
    for i in range(2):
        tensors[f"{i}.0.linear.weight"] = rng.normal(0, 0.1, (64, 64)).astype(np.float32)
        tensors[f"{i}.0.linear.bias"] = np.zeros(64, np.float32)
        tensors[f"{i}.1.weight"] = rng.normal(0, 0.1, (320, 64)).astype(np.float32)
    return write_head(base.parent / "medusa", tensors)


def test_drafters_compete_alone_if_they_have_what_they_need_and_lookup_beside_streams_and_heads():
    names = [method.name for method in methods_of(Drafters(datastore="file"), ["medusa"])]
    usual = ["plain", "streams", BOTH, "lookup", "pld", "suffix", "lookahead", "rest"]
    assert names == [*usual, "medusa", "medusa + lookup"]
    given = methods_of(Drafters(datastore="file", lookup_size=3), ["m"], "rest,streams + pld,m")
    assert [method.drafters.drafters for method in given] == [("rest",), ("pld",), ()]
    assert [method.guesses for method in given] == [False, True, True]
    assert [method.drafters.datastore for method in given] == ["file", None, None]
    assert given[1].in_trees(4).num_streams is None
    assert given[0].in_trees(4).num_streams == 0
    *others, both = methods_of(Drafters(draft_model="model"), [])
    assert both.name == "draft-model + lookup" and others[-1].name == "lookahead"
    assert set(both.drafters.drafters) == {"lookup", "draft-model"} and not both.guesses
    assert both.drafters.draft_model == others[-2].drafters.draft_model == "model"
    for chosen, sentence in (
        ("rest", "method 'rest' was asked for without --datastore"),
        ("draft-model + lookup", "method 'draft-model . lookup' was asked for without --draft-mod"),
        ("x", "no method 'x'"),
    ):
        with pytest.raises(UserError, match=sentence):
            methods_of(Drafters(), [], chosen)


def test_classes_are_chosen_by_group_task_or_name():
    every = classes_of("", [200, 2000], ["sql"], questions=True)
    names = [one.name for one in every]
    assert names[:2] == ["mt_bench", "translation"] and names[-1] == "sql, adapter"
    assert names[-4:-1] == ["unpredictable", "context 0.2k", "context 2k"]
    assert [one.name for one in classes_of("sql", [], ["sql"], False)] == ["sql", "sql, adapter"]
    assert all(one.nodes == SQL_NODES for one in classes_of("sql", [], ["sql"], False))
    assert [one.name for one in classes_of("qa,typed", [], [], True)][:2] == ["qa", "proofread"]
    for chosen, sentence in (("qa", "without --questions"), ("x", "no class of texts 'x'")):
        with pytest.raises(UserError, match=sentence):
            classes_of(chosen, [], [], questions=False)
    with pytest.raises(UserError, match="'adapters' for this model, expected typed, prose, unpre"):
        classes_of("adapters", [], [], questions=False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--classes prose --methods lookup,streams", "method 'streams' was asked for and"),
        ("--classes prose,context --contexts 200,5000", "a context of 5000 tokens was asked for"),
        ("--classes prose --answers answers", "--answers was given, expected with the class spec"),
        ("--classes prose --questions q.jsonl", "--questions was given, expected with the class"),
        ("--classes prose --contexts 400", "--contexts was given, expected with the class context"),
        ("--gguf q.jsonl", "--gguf and --acceptance were both given, expected at most one"),
        ("--methods suffix --datastore q.jsonl", "--datastore was given, expected with the method"),
        ("--methods suffix --draft-model x", "--draft-model was given, expected with the method"),
        ("--methods suffix --lookup-size 3", "--lookup-size was given, expected with the method"),
        ("--answers q.jsonl", "--answers q.jsonl is no directory, expected one or a new name"),
        ("--output q.jsonl", "--output q.jsonl is no directory, expected one or a new name"),
        ("--methods rest --datastore x", "the datastore x cannot be read"),
    ],
)
def test_what_cannot_take_part_is_refused_before_anything_runs(base, here, options, sentence):
    command = ("benchmark", "rivals", "--model", base, "--acceptance", *options.split())
    assert sentence in command_line.refusal(command_line.run(*command))
    assert [path.name for path in here.iterdir()] == ["q.jsonl"]


def test_medusas_size_is_its_papers():
    """Five heads for Vicuna 7B (arXiv 2401.10774): 740 M parameters, 84 M without LM heads."""
    vicuna = {"hidden_size": 4096, "vocab_size": 32000}
    assert round(medusa_parameters(vicuna, 5, own=True) / 1e6) == 739
    assert round(medusa_parameters(vicuna, 5, own=False) / 1e6) == 84


class Stopped(BaseException):
    """What ends a program at once, as a signal does."""


def test_a_whole_report_that_was_broken_off_in_between(base, streams, head, here, monkeypatch):
    from specstream_mlx.benchmarks import runner

    def run():
        return command_line.run(
            *("benchmark", "rivals", "--model", base, "--adapter-path", streams),
            *("--questions", "q.jsonl", "--max-tokens", 8, "--draft-model", base),
            *("--draft-head", head, "--methods", f"plain,streams,{BOTH},suffix,draft-model,medusa"),
            *("--classes", "spec-bench,unpredictable,context", "--temperature", "0,1"),
            *("--answers", "answers", "--runs", "runs.jsonl"),
        )

    timed, made = runner._timed, []

    def stopping(*given):
        made.append(1)
        if (here / "runs.jsonl").read_text().count("\n") == 45:
            raise Stopped
        return timed(*given)

    monkeypatch.setattr(runner, "_timed", stopping)
    with pytest.raises(Stopped):
        run()
    unfinished = json.loads(next(here.glob("rivals-*.json")).read_text())
    assert {row["class"] for row in unfinished["rows"]} == {"mt_bench", "qa"}
    assert unfinished["notes"][-1].startswith("1 of 6 parts")
    monkeypatch.setattr(runner, "_timed", timed)
    result = run()
    assert result.exit_code == 0, result.output

    (path,) = here.glob("rivals-*.json")
    values = json.loads(path.read_text())
    rows = values["rows"]
    assert {row["class"] for row in rows} == {"mt_bench", "qa", "unpredictable", "context 0.2k"}
    methods = {"plain", "streams", BOTH, "suffix", "draft-model", "medusa"}
    for temperature in (0, 1):
        own = [row for row in rows if row["temperature"] == temperature]
        outside = {"mlx_lm, draft model"} if temperature == 0 else set()
        assert {row["method"] for row in own if "speedup" in row} == {MLX_LM, *methods, *outside}
        assert {row["method"] for row in own if row["nodes"] == 8} == methods - {"plain"}
    assert all(row["same_output_as_plain"] == row["items"] for row in rows)
    assert all(row["low"] <= row["speedup"] <= row["high"] for row in rows if "speedup" in row)
    assert {row["accepted"] for row in rows if row["method"] == "plain"} == {1.0}

    controls = [row for row in rows if row["class"] == "unpredictable"]
    assert max(row["accepted"] for row in controls) < 1.2
    written = [row for row in rows if row["class"] != "unpredictable"]
    drafts = [row for row in written if row["method"] == "draft-model" and row["nodes"]]
    certain = [row["accepted"] for row in drafts if not row["temperature"]]
    drawn = [row["accepted"] for row in drafts if row["temperature"]]
    assert statistics.mean(certain) > 3  # the base itself drafts,
    assert statistics.mean(drawn) > 2  # and under the noise of the draws

    sizes = {row["method"]: row for row in values["sizes"]}
    assert sizes["medusa"]["parameters"] == 2 * (64 * 64 + 64 + 320 * 64)
    weights = 4 * sizes["medusa"]["parameters"]
    assert sizes["medusa"]["resident"] == pytest.approx(weights, abs=1000)  # as MLX counts memory
    assert sizes["medusa"]["disk"] == (head / "model.safetensors").stat().st_size
    assert sizes["suffix"]["bytes_a_token"] > 100 and not sizes["suffix"]["parameters"]
    assert "Medusa, computed" in sizes and sizes["medusa"]["what"].startswith("a head of medusa")

    kept = (here / "runs.jsonl").read_text().splitlines()
    items = [json.loads(one) for one in path.with_suffix(".jsonl").read_text().splitlines()]
    assert len(items) == len(kept) == sum(row["items"] for row in rows)
    assert all(sum(item["accept_lengths"]) == item["tokens"] for item in items)
    assert result.stdout.strip() == path.with_suffix(".md").read_text().strip()

    tables = {one.title: one for one in by_class(values)}
    assert set(tables) == {
        f"{name}{at}"
        for name in ("mt_bench", "qa", "unpredictable", "context 0.2k")
        for at in ("", ", temperature 1")
    }
    cells = {cell["method"]: cell for cell in tables["qa"].rows}
    [plain] = [r for r in rows if (r["class"], r["temperature"], r["method"]) == ("qa", 0, "plain")]
    assert cells["plain"]["calls of the base"] == str(plain["calls"])
    assert cells["plain"]["ms a token"] == f"{1e3 / plain['decode_tps']:.1f}"
    texts = 2 * plain["items"]  # by worth, and in trees
    assert cells["medusa"]["texts as plain"] == f"{texts} of {texts}"
    assert cells["medusa"]["extra parameters"] == f"{sizes['medusa']['parameters']:,}"

    page = path.with_suffix(".html").read_text()
    assert page.count("<svg") == 2 * 4 and "prefers-color-scheme: dark" in page
    assert "<script" not in page and "http" not in page


@pytest.fixture(scope="module")
def prompt_tokens(base):
    """Streams of another kind: embeddings alone, which pass all layers."""
    fields = {"num_streams": 2, "stream_init": "identity", "stream_mlp": "base", "pruner_rank": 0}
    return stream_adapter_directory(base.parent / "ppd", base, num_msa_layers=4, **fields)


def test_other_streams_compete_as_draft_heads_do(base, streams, prompt_tokens, here):
    result = command_line.run(
        *("benchmark", "rivals", "--model", base, "--adapter-path", streams),
        *("--draft-head", prompt_tokens, "--methods", f"streams,{BOTH},ppd,ppd + lookup"),
        *("--classes", "prose", "--max-tokens", 24, "--runs", "runs.jsonl"),
    )
    assert result.exit_code == 0, result.output
    values = json.loads(next(here.glob("rivals-*.json")).read_text())
    assert all(row["same_output_as_plain"] == row["items"] for row in values["rows"])
    timed = {row["method"] for row in values["rows"] if "speedup" in row}
    assert timed >= {"ppd", "ppd + lookup", "streams"}
    items = [json.loads(line) for line in next(here.glob("rivals-*.jsonl")).open()]
    assert max(max(item["accept_lengths"]) for item in items if item["method"] == "ppd") <= 3
    sizes = {row["method"]: row for row in values["sizes"]}
    assert sizes["ppd"]["what"] == "2 streams in 4 layers"
    assert sizes["ppd"]["parameters"] == 2 * 64 < sizes["streams"]["parameters"]


def test_an_adapters_lora_is_under_heads_and_other_streams_too(base, head, prompt_tokens):
    """Mounted after them, as for the texts of adapters: all write what it writes."""
    model, _ = load(base)
    tuned = stream_adapter_directory(base.parent / "tuned", base, lora_rank=4)
    rivals, _ = mounted_heads(model, [head, prompt_tokens])

    def text(one, settings):
        asked = request([5, 7, 11], settings, max_tokens=12)
        return [token for step in decode(one, asked) for token in step.tokens][:12]

    alone = text(model, ONE_TOKEN)
    model.swap_adapter(tuned)
    expected = text(model, ONE_TOKEN)
    assert expected != alone
    for rival in rivals.values():
        assert text(rival, DraftSettings(tree_size=4)) == expected


def test_no_rows_of_another_adapters_lora_are_shared(base, streams, head, here, monkeypatch):
    """Heads do not know of the LoRA under them."""
    adapters = {
        name: stream_adapter_directory(here / name, base, lora_rank=4, seed=seed)
        for seed, name in enumerate(("sql", "friendly"))
    }
    module = importlib.import_module("specstream_mlx.benchmarks.rivals")
    monkeypatch.setattr(module, "fitting_adapters", lambda config: adapters)
    monkeypatch.setattr(bundled, "adapter_path", adapters.get)
    result = command_line.run(
        *("benchmark", "rivals", "--model", base, "--adapter-path", streams, "--acceptance"),
        *("--draft-head", head, "--methods", "medusa", "--classes", "adapters", "-m", 16),
        *("--tree-size", 4),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(next(here.glob("rivals-*.json")).read_text())["rows"]
    ours = [row for row in rows if row["method"] == "medusa"]
    assert len(ours) == 2
    assert all(row["same_output_as_plain"] == row["items"] for row in ours)


def test_trees_of_other_sizes_are_counted_too(base, streams, here):
    def run(*more):
        result = command_line.run(
            *("benchmark", "rivals", "--model", base, "--adapter-path", streams),
            *("--methods", "lookup,streams", "--max-tokens", 8, "--acceptance", *more),
        )
        assert result.exit_code == 0, result.output
        rows = json.loads(next(here.glob("rivals-*.json")).read_text())["rows"]
        return {(row["class"], row["nodes"]) for row in rows if row["nodes"]}, result.stdout

    counted, said = run("--classes", "context,prose", "--tree-size", "3,5")
    assert counted == {(name, size) for name in ("prose", "context 0.2k") for size in (3, 5)}
    assert "prose: tokens a call in trees of 3 nodes" in said
    assert "context 0.2k: tokens a call by the size of trees" in said
    page = next(here.glob("rivals-*.html")).read_text()
    assert "in trees of 3 nodes" in page and "8 nodes" not in page
    assert run("--classes", "prose")[0] == {("prose", 8)}


def test_a_report_shows_the_parts_of_earlier_ones_that_it_has_not(base, streams, here):
    def run(*more):
        return command_line.run(
            *("benchmark", "rivals", "--model", base, "--adapter-path", streams),
            *("--methods", "lookup,streams", "--max-tokens", 8, "--acceptance", *more),
        )

    def read(name):
        (path,) = here.glob(f"rivals-{name}-*.json")
        return path, json.loads(path.read_text())

    drawn = ("--classes", "prose", "--temperature", "0,1", "--per-category", 2, "--name", "drawn")
    assert run(*drawn).exit_code == 0
    path, earlier = read("drawn")
    result = run("--classes", "context,prose", "--join", path, "--name", "whole")
    assert result.exit_code == 0, result.output
    whole_path, whole = read("whole")
    parts = {(row["class"], row["temperature"]): row["items"] for row in whole["rows"]}
    assert parts == {("prose", 0): 1, ("context 0.2k", 0): 1, ("prose", 1): 2}  # its own first
    taken = [row for row in whole["rows"] if row["temperature"]]
    how = {name: earlier["facts"][name] for name in ("cpu", "per_class", "max_tokens")}
    separately = {"measured_separately": how}
    assert taken == [row | separately for row in earlier["rows"] if row["temperature"]]
    items = [json.loads(line) for line in whole_path.with_suffix(".jsonl").open()]
    assert len(items) == sum(row["items"] for row in whole["rows"])
    names = [size["method"] for size in whole["sizes"]]
    assert len(names) == len(earlier["sizes"]) and names.count("streams") == 1
    assert "prose at temperature 1: measured separately on " in result.stdout
    assert "2 texts a class, at most 8 tokens each." in result.stdout
    assert "In short, temperature 1." in result.stdout

    # A third one takes both, of which each row keeps how it was measured.
    assert run("--classes", "context", "--join", whole_path, "--name", "third").exit_code == 0
    _, third = read("third")
    found = {
        (row["class"], row["temperature"]): row.get("measured_separately") for row in third["rows"]
    }
    own = how | {"per_class": 1}
    assert found == {("context 0.2k", 0): None, ("prose", 0): own, ("prose", 1): how}
    assert [note.partition(":")[0] for note in third["notes"]] == [
        "prose",
        "prose at temperature 1",
    ]
    result = run("--classes", "prose", "--temperature", "0,1", "--join", path, "--name", "third")
    assert f"{path.name} adds nothing: all of it was measured here." in result.stdout

    no_report = "is none of this command's reports, expected rivals-"
    first, *others = earlier["rows"]
    size, *sizes = earlier["sizes"]
    for spoil, sentence in (
        ({"facts": earlier["facts"] | {"model": "other"}}, f"is other, expected {base} as here"),
        ({"sizes": [size | {"parameters": 3}, *sizes]}, "streams has 3 parameters, expected "),
        ({"rows": [{"class": "prose"}]}, no_report),
        ({"rows": [first | {"class": ["prose"]}, *others]}, no_report),
        ({"rows": [first | {"group": "x"}, *others]}, no_report),
        ({"rows": [first | {"temperature": "1"}, *others]}, no_report),
        ({"rows": [first | {"depths": [0.5]}, *others]}, no_report),
        ({"sizes": [{"method": "streams", "parameters": 3}]}, no_report),
        ({"notes": [1]}, no_report),
        ({"facts": 3}, no_report),
    ):
        path.write_text(json.dumps(earlier | spoil))
        result = run("--classes", "context", "--join", path, "--name", "refused")
        assert sentence in command_line.refusal(result)
    assert not list(here.glob("rivals-refused-*"))
    assert "none.json is missing" in command_line.refusal(run("--join", "none.json"))


def test_trees_behind_long_contexts_are_counted_if_they_are_asked_for():
    for sizes, expected in (((), ()), ((8, 60), (8, 60))):
        (long,) = classes_of("context", [2000], [], questions=False, sizes=sizes)
        assert (long.name, tuple(long.nodes)) == ("context 2k", expected)


def test_other_streams_that_change_the_text_are_refused(base, streams, shared, here):
    result = command_line.run(
        *("benchmark", "rivals", "--model", base, "--adapter-path", streams),
        *("--draft-head", shared, "--classes", "prose", "--max-tokens", 8, "--acceptance"),
    )
    assert result.exit_code == 2
    assert "shared has LoRA, expected a draft head, or streams alone" in result.output
    assert not list(here.glob("rivals-*"))


def test_what_spec_benchs_speed_py_reads_of_our_answers(base, here):
    """Its counting (evaluation/speed.py), on files that it would read unchanged."""
    result = command_line.run(
        *("benchmark", "rivals", "--model", base, "--questions", "q.jsonl", "--max-tokens", 12),
        *("--classes", "spec-bench", "--methods", "lookup", "--answers", "answers"),
    )
    assert result.exit_code == 0, result.output

    def read(name):
        return [json.loads(line) for line in (here / "answers" / name).read_text().splitlines()]

    encode = load_tokenizer(base).encode
    speeds, baseline = [], []
    for line in read("lookup.jsonl"):
        choice = line["choices"][0]
        speeds.append(sum(choice["new_tokens"]) / sum(choice["wall_time"]))
    for line in read("mlx_lm.jsonl"):
        choice = line["choices"][0]
        tokens = sum(len(encode(turn)) - 1 for turn in choice["turns"])
        baseline.append(tokens / sum(choice["wall_time"]))
    assert len(speeds) == len(baseline) == 2
    assert np.mean(speeds) / np.mean(baseline) > 0

    items = [json.loads(line) for line in next(here.glob("rivals-*.jsonl")).open()]
    ours = [item for item in items if (item["method"], item["nodes"]) == ("lookup", None)]
    choices = [line["choices"][0] for line in read("lookup.jsonl")]
    for ours_, theirs in (("tokens", "new_tokens"), ("seconds", "wall_time")):
        expected = sum(sum(choice[theirs]) for choice in choices)
        assert sum(item[ours_] for item in ours) == pytest.approx(expected)
    rows = json.loads(next(here.glob("rivals-*.json")).read_text())["rows"]
    row = next(r for r in rows if (r["method"], r["nodes"], r["class"]) == ("lookup", None, "qa"))
    [qa] = [line["choices"][0] for line in read("lookup.jsonl") if line["category"] == "qa"]
    assert row["accepted"] == pytest.approx(np.mean(qa["accept_lengths"]))


@pytest.mark.skipif("SPEC_BENCH" not in os.environ, reason="SPEC_BENCH names no Spec-Bench clone")
def test_spec_benchs_own_scripts_run_unchanged_on_our_answers(base, here, monkeypatch, capsys):
    """``SPEC_BENCH=DIR``, a clone of hemingkx/Spec-Bench: its ``speed.py`` and ``equal.py``."""
    monkeypatch.syspath_prepend(Path(os.environ["SPEC_BENCH"]) / "evaluation")
    speed, equal = (importlib.import_module(name) for name in ("speed", "equal"))
    result = command_line.run(
        *("benchmark", "rivals", "--model", base, "--questions", "q.jsonl", "--max-tokens", 12),
        *("--classes", "spec-bench", "--methods", "lookup", "--answers", "answers"),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(next(here.glob("rivals-*.json")).read_text())["rows"]
    own = [row for row in rows if (row["method"], row["nodes"]) == ("lookup", None)]
    accepted = {row["class"]: row["accepted"] for row in own}
    answers = here / "answers"
    capsys.readouterr()
    for task in ("mt_bench", "qa", "overall"):
        found = speed.speed(answers / "lookup.jsonl", answers / "mlx_lm.jsonl", base, task)
        assert all(value > 0 for value in found[:3])
        if task in accepted:
            assert np.mean(found[3]) == pytest.approx(accepted[task])
    equal.run_compare(f"{answers}/", "lookup.jsonl", "mlx_lm.jsonl")
    assert capsys.readouterr().out.endswith("Result totally Equal!\n")


@pytest.mark.slow
def test_adapters_compete_with_what_their_own_model_writes(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = command_line.run(
        *("benchmark", "rivals", "--classes", "sql", "--methods", f"streams,{BOTH},lookup"),
        *("--max-tokens", 16, "--acceptance", "--temperature", "0,1"),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(next(tmp_path.glob("rivals-*.json")).read_text())["rows"]
    shared = [row for row in rows if row["class"] == "sql, adapter"]
    assert {row["method"] for row in shared} == {MLX_LM, "plain", "streams", BOTH, "lookup"}
    assert {row["nodes"] for row in shared} == {None, *SQL_NODES}
    ours = [row for row in rows if row["method"] != MLX_LM]
    assert all(row["same_output_as_plain"] == row["items"] for row in ours)
    assert all("speedup" not in row for row in rows)
    assert max(row["accepted"] for row in shared) > 1.5


def test_the_first_method_is_bold_and_another_program_competes_for_nothing():
    def row(name, method, speedup, group="typed"):
        figures = {"speedup": speedup, "low": speedup, "high": speedup + 0.5, "nodes": None}
        return {"group": group, "class": name, "method": method, "temperature": 0.0} | figures

    rows = [
        *(row("sql", "lookup", 2.0), row("reply", "lookup", 0.5)),
        *(row("sql", "streams", 1.0), row("reply", "streams", 1.44)),
        *(row("sql", "llama.cpp", 9.0), row("reply", "llama.cpp", 1.0)),
    ]
    expected = [("streams", 1.2, 1), ("lookup", 1.0, 1), ("llama.cpp", 3.0, 0)]
    assert [(name, pytest.approx(mean), n) for name, mean, n in ranked(rows, "speedup")] == expected
    [one] = tables_of({"rows": rows, "means": means_of(rows)})
    assert one.columns == ["method", "sql", "reply", "mean"]
    assert [tuple(cells.values()) for cells in one.rows] == [
        ("streams", "1.00x (1.00-1.50)", "**1.44x (1.44-1.94)**", "**1.20x**"),
        ("lookup", "**2.00x (2.00-2.50)**", "0.50x (0.50-1.00)", "1.00x"),
        ("llama.cpp", "9.00x (9.00-9.50)", "1.00x (1.00-1.50)", "3.00x"),
    ]


def test_a_method_that_missed_a_class_has_no_mean():
    def row(name, method, accepted):
        names = {"group": "adapters", "class": name, "method": method}
        return names | {"temperature": 0.0, "nodes": 8, "accepted": accepted}

    every = [row("sql", "streams", 2.0), row("reply", "streams", 4.5)]
    every += [row("news", "streams", 3.0), row("news", "medusa", 9.0), row("sql", "medusa", 9.0)]
    [mean] = means_of(every)
    assert mean["method"] == "streams" and mean["accepted"] == pytest.approx(3.0)


def test_methods_are_ranked_where_they_took_part_in_every_class():
    def row(name, method, accepted):
        figures = {"accepted": accepted, "items": 1, "same_output_as_plain": 1, "same": True}
        names = {"group": "typed", "class": name, "method": method, "temperature": 0.0}
        return names | figures | {"nodes": 8, "depths": [0.0] * 8}

    rows = [row("sql", "streams", 2.0), row("reply", "streams", 2.0), row("sql", "medusa", 9.0)]
    plain = row("sql", "mlx_lm", 1.0) | {"nodes": None, "calls": 4, "tokens": 4}
    [table, _] = by_class({"rows": [plain, *rows], "sizes": []})
    counted = ["calls of the base", "call reduction", "tokens a call, 8 nodes"]  # nothing was timed
    assert table.columns == ["method", *counted, "texts as plain", "extra parameters"]
    [short] = summaries({"rows": rows, "sizes": []})
    assert [cells["method"] for cells in short.rows] == ["streams"]
    assert list(depths_of(rows, 0.0)) == ["streams"]


def test_plots_of_nothing_are_left_out():
    assert strips([], "speedup", "x") == lines({}) == by_parameters([], []) == ""
