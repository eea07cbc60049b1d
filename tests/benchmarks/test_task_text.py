"""Drafting baselines on hand-counted examples, and what ``benchmarks.task_text`` derives from them.

No model is loaded.
"""

import json
import os

import mlx.core as mx
import pytest
import typer
from specstream_mlx.convert.demo_model import tasks

from benchmarks import task_text
from benchmarks.drafting_baselines import n_gram, prompt_lookup, target_calls
from benchmarks.task_text import call_reduction, seen_share, too_templated
from specstream_mlx import UserError, bundled


def counting(tokens):
    """A drafter that goes on counting from the newest token."""
    return [tokens[-1] + step for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("output", "calls"),
    [
        ([], 0),
        ([1], 1),
        ([1, 2], 2),
        # 1; then 2 3 4 accepted and 5 as the bonus; then 6 accepted, and the output ends
        ([1, 2, 3, 4, 5, 6], 3),
        ([1, 2, 3, 4, 5], 2),
        # 1; then 2 accepted and 7 as the correction; then 8 9 accepted and 4; then 5
        ([1, 2, 7, 8, 9, 4, 5], 4),
        ([5, 3, 1], 3),
    ],
)
def test_target_calls_counted_by_hand(output, calls):
    assert target_calls([0], output, counting) == calls


def test_first_call_has_no_drafts():
    assert target_calls([0], [1, 2, 3], counting) == 2
    assert target_calls([0, 1, 2], [3, 4, 5], counting) == 2


def test_drafter_never_sees_what_comes_later():
    seen = []

    def draft(tokens):
        seen.append(list(tokens))
        return []

    assert target_calls([7], [1, 2, 3], draft) == 3
    assert seen == [[7, 1], [7, 1, 2]]


@pytest.mark.parametrize(
    ("tokens", "drafted"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2]),
        ([1, 2, 3, 8, 9, 2, 3, 4, 6, 1, 2, 3], [8, 9, 2, 3]),  # three tokens agree, then two
        ([7, 3, 5, 1, 3, 6, 2, 3], [6, 2, 3]),  # the later of two occurrences
        ([4, 4, 4], [4]),  # an occurrence may overlap the end
        ([1, 2, 3], []),
        ([1], []),
    ],
)
def test_prompt_lookup(tokens, drafted):
    assert prompt_lookup(4)(tokens) == drafted


def test_n_gram_prefers_the_longest_context():
    draft = n_gram([[1, 2, 3, 4], [9, 3, 5], [8, 3, 5]], 1, order=3)
    assert draft([2, 3]) == [4]
    assert draft([9, 3]) == [5]
    assert draft([7, 3]) == [5]  # backs off to one token: 3 5 twice, 3 4 once
    assert draft([7]) == [3]  # backs off to none: 3 is the commonest token


def test_n_gram_drafts_on_its_own_drafts():
    sequences = [[1, 2, 3, 4, 5, 6]]
    assert n_gram(sequences, 4)([1]) == [2, 3, 4, 5]
    assert n_gram(iter(sequences), 2)([0, 0, 0, 0, 0, 3]) == [4, 5]


def test_n_gram_of_equals_takes_the_first_seen():
    assert n_gram([[1, 5], [1, 4]], 1)([1]) == [5]


@pytest.mark.parametrize("sequences", [[], [[]]])
def test_n_gram_of_nothing_drafts_nothing(sequences):
    assert n_gram(sequences, 4)([1, 2]) == []


def test_call_reduction_counted_by_hand():
    prompts, outputs = [[0], [0]], [[1, 2, 3, 4, 5, 6], [5, 3, 1]]
    assert call_reduction(prompts, outputs, counting) == 9 / (3 + 3)
    assert call_reduction(prompts, outputs, lambda tokens: []) == 1


def test_seen_share_is_verbatim():
    training = (text for text in ("a b", "c"))
    assert seen_share(["a b", "a", "C", "c"], training) == 0.5


@pytest.mark.parametrize(
    ("n_gram_cr", "ss_cr", "flag"),
    [(1.6, 2.0, True), (1.5, 2.0, False), (2.5, 2.0, True), (1.6, None, None)],
)
def test_too_templated(n_gram_cr, ss_cr, flag):
    assert too_templated(n_gram_cr, ss_cr) is flag


def next_number(tokens):
    """Logits of a model over four tokens that expects the next number, with probability 1/2."""
    likely = (tokens[..., None] + 1) % 4 == mx.arange(4)
    return mx.where(likely, mx.log(mx.array(1 / 2)), mx.log(mx.array(1 / 6)))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [([[1, 2], [3, 0]], 2.0), ([[2], [2]], 6.0), ([[1, 2, 3], [1]], (2**3 * 6) ** (1 / 4))],
)
def test_perplexity_counted_by_hand(targets, expected):
    found = task_text.perplexity(next_number, [[3, 3, 0], [2]], targets, "perplexity")
    assert found == pytest.approx(expected)


def speedup_file(path, generator, reductions, age):
    rows = [
        {"task": task, "method": method, "call_reduction": reduction}
        for task, method, reduction in reductions
    ]
    path.write_text(json.dumps({"facts": {"generator": generator}, "rows": rows}))
    os.utime(path, (1000 - age, 1000 - age))
    return path


def test_speedup_file_is_the_newest_of_this_generator(tmp_path):
    here = tasks.generator_hash()
    speedup_file(tmp_path / "speedup-old.json", here, [("sql", "SS shared, tree", 3.0)], 2)
    rows = [
        ("sql", "mlx_lm", 9.0),
        ("sql", "SS lossless, chain", 2.0),
        ("sql", "SS shared, tree", 2.5),
        ("describe", "SS lossless, chain", 1.5),
    ]
    newer = speedup_file(tmp_path / "speedup-new.json", here, rows, 1)
    other = speedup_file(tmp_path / "speedup-other.json", "other", [], 0)
    found = task_text.read_speedup(None, tmp_path)
    assert found.name == newer.name
    assert found.best == {"sql": 2.5, "describe": 1.5}
    assert task_text.read_speedup(None, tmp_path / "none") is None
    with pytest.raises(UserError, match="text generator other"):
        task_text.read_speedup(other)
    with pytest.raises(UserError, match="not a file of benchmarks"):
        task_text.read_speedup(tmp_path / "absent.json")


def test_markdown_marks_what_was_not_measured():
    measured = task_text.Row("sql", 0.0, 0.0, 1.2, 1.1, "adapter", 1.3, 2.4, 3.0, True)
    bare = task_text.Row("concise", 0.02, 0.0, 1.2, None, "base", 1.3, 1.4, None, None)
    facts = dict.fromkeys(("machine", "cpu", "mlx", "backend", "blas", "model", "generator"), "x")
    facts |= {"overlap_items": 10, "training_items": 100, "items": 5, "speedup": "speedup-x.json"}
    lines = task_text.markdown([measured, bare], facts)
    row = "| sql | 0.00% | 0.00% | 1.200 | 1.100 | adapter | 1.30 | 2.40 | 3.00 | **yes** |"
    assert row in lines
    assert "| concise | 2.00% | 0.00% | 1.200 | - | base | 1.30 | 1.40 | - | - |" in lines
    assert lines[-1].endswith(": concise.")


def test_missing_model_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    with pytest.raises(typer.Exit) as exit_of:
        task_text.main(output=tmp_path / "results")
    assert exit_of.value.exit_code == 2
    assert capsys.readouterr().err.startswith("error: the bundled model is missing")
    assert not (tmp_path / "results").exists()
