"""``benchmark spec-bench``: its questions, its figures by hand, and what it writes."""

import json

import command_line
import pytest

from benchmarks.runner import MLX_LM, Compared, TimedRun
from benchmarks.spec_bench import (
    ALL,
    MEAN,
    Answered,
    Question,
    answer_lines,
    means_of,
    overall_rate,
    rows_of,
    spread,
)


def run_of(text, lengths, seconds):
    """A run of calls of so many tokens."""
    tokens = [ord(letter) for letter in text]
    return [TimedRun(tokens, text, len(lengths), 1.0, seconds=seconds, lengths=lengths)]


def test_figures_of_a_method_by_hand():
    """A conversation of two turns and one question, twice as fast in half of the calls."""
    questions = [Question(1, "coding", ("a", "b")), Question(2, "qa", ("c",))]
    runs = {
        MLX_LM: [run_of(text, [1] * len(text), 4.0) for text in ("abcd", "efgh", "ij")],
        "both": [run_of("abcd", [1, 3], 1.0), run_of("efgh", [2, 2], 1.0), run_of("ix", [2], 2.0)],
    }
    rates = {(MLX_LM, i): 10.0 for i in range(3)}
    rates |= {("both", 0): 20.0, ("both", 1): 40.0, ("both", 2): 15.0}
    answered = Answered(questions, [0, 0, 1], Compared(runs, rates), left_out=0)
    rows = {(row["task"], row["method"]): row for row in rows_of(answered, [MLX_LM, "both"])}
    chat, qa, everything = (rows[task, "both"] for task in ("mt_bench", "qa", ALL))
    assert (chat["questions"], chat["items"], chat["tokens"]) == (1, 2, 8)
    assert (everything["questions"], everything["items"], everything["tokens"]) == (2, 3, 10)
    figures = ("call_reduction", "speedup", "same_output_as_plain")
    assert [chat[key] for key in figures] == [2.0, 3.0, 2]
    assert [qa[key] for key in figures] == [2.0, 1.5, 0]
    assert [everything[key] for key in figures] == [2.0, 2.0, 2]
    # 8 tokens in 2 seconds and 2 in 2; plainly 8 in 8 and 2 in 4.
    assert overall_rate(answered, "both") == pytest.approx((4.0 + 1.0) / 2)
    assert everything["spec_bench_speedup"] == pytest.approx((4.0 + 1.0) / (1.0 + 0.5))
    (mean,) = (row for row in means_of(list(rows.values())) if row["method"] == "both")
    assert mean["task"] == MEAN
    assert mean["speedup"] == pytest.approx((3.0 * 1.5) ** 0.5)
    # Spec-Bench's own format.
    chat, qa = answer_lines(answered, "both", "model")
    assert set(chat) == {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
    counts = {"decoding_steps": [2, 2], "new_tokens": [4, 4], "accept_lengths": [3, 2]}
    found = {"index": 0, "turns": ["abcd", "efgh"], "wall_time": [1.0, 1.0], **counts}
    assert chat["choices"] == [found]


QUESTIONS = [
    (7, "coding", ["send the report", "send it again"]),
    (8, "stem", ["the meeting", "is at noon"]),
    (9, "qa", ["is the meeting at noon"]),
    (10, "rag", ["the table before the meeting"]),
]


def test_so_many_questions_a_task_are_spread_over_it_and_over_mt_benchs_categories():
    categories = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem")
    names = [name for name in categories for _ in range(10)] + ["qa"] * 80 + ["rag"] * 3
    questions = [Question(i, name, ("a",)) for i, name in enumerate(names)]
    chosen = spread(questions, 8)
    assert {q.category for q in chosen[:8]} == set(categories)
    assert [q.number for q in chosen[8:]] == [75, 85, 95, 105, 115, 125, 135, 145, 150, 151, 152]


def test_every_method_answers_every_turn(base, streams, here):
    flags = ("--model", base, "--questions", "q.jsonl", "--max-tokens", 16)
    flags += ("--adapter-path", streams, "--answers", "answers")
    result = command_line.succeeded(command_line.run("benchmark", "spec-bench", *flags))
    (path,) = here.glob("spec-bench-*.json")
    rows = {(r["task"], r["method"]): r for r in json.loads(path.read_text())["rows"]}
    timed = {MLX_LM, "streams alone", "lookup alone", "both"}
    assert {method for _, method in rows} == timed | {"chain", "tree of 8"}
    assert {task for task, _ in rows} == {"mt_bench", "qa", "rag", ALL}
    for (task, method), row in rows.items():
        assert row["same_output_as_plain"] == row["items"]
        assert ("speedup" in row) == (method in timed)
        assert row["items"] == {"mt_bench": 4, ALL: 6}.get(task, 1)
    assert result.stdout.strip() == path.with_suffix(".md").read_text().strip()
    answers = {
        file.stem: [json.loads(one)["choices"][0] for one in file.read_text().splitlines()]
        for file in (here / "answers").glob("*.jsonl")
    }
    turns = [choice["turns"] for choice in answers["mlx_lm"]]
    assert [len(one) for one in turns] == [2, 2, 1, 1]
    for lines in answers.values():
        assert [choice["turns"] for choice in lines] == turns
        for choice in lines:  # each turn begins with a call that ends the prompt
            accepted = sum(choice["new_tokens"]) - len(choice["turns"])
            assert sum(choice["accept_lengths"]) == accepted
