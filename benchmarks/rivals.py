"""Drafters side by side on one model: ``specstream-mlx benchmark rivals --questions FILE``.

The questions are Spec-Bench's (see ``spec_bench``), by task, and beside them texts that nobody can
foresee, where no drafter should cost much: the control. Every method drafts as is worth most, step
by step, with a pace of its own: each drafter by itself, and with the streams if there are any. All
methods take turns on every text, and every text is compared with mlx_lm's. What ``suffix`` keeps of
earlier answers is each method's own too; where a run was broken off and goes on, it knows only the
answers since.

Figures are those of ``spec_bench``: tokens a call, and speed over mlx_lm behind the first token.

``python -m benchmarks.rivals`` is the same command in a clone.
"""

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specstream_mlx.drafting.proposals import check_drafters_fit
from specstream_mlx.drafting.settings import Drafters
from specstream_mlx.drafting.suffix import forget_answers
from specstream_mlx.loading import load_draft_model
from specstream_mlx.options.generation import DRAFTERS

from .report import Kept, machine_suffix, measured_on, table, write_report, write_text
from .runner import MLX_LM, Base, ByWorth, Mounted, measure_costs
from .spec_bench import (
    ALL,
    TASKS,
    Answered,
    Asked,
    Question,
    answer,
    depends_on,
    kept_way,
    means_of,
    mount_lossless,
    rows_of,
    write_answers,
)
from .speedup import Subject

CONTROL = "unpredictable"
_CONTROLS, _WORDS = 4, 120
_NEEDS = {"draft-model": "draft_model", "rest": "datastore"}


def methods_of(given: Drafters, streams: bool) -> dict[str, ByWorth]:
    """List the methods: the drafters that were chosen, by themselves and with the streams.

    Args:
        given: who drafts, with what they need; ``None`` for ``drafter``: all that have it.
        streams: whether the model has any.
    """
    lacking = {name for name, field in _NEEDS.items() if getattr(given, field) is None}
    names = given.chosen or tuple(name for name in DRAFTERS if name not in lacking)
    alone = {}
    for name in names:
        others = {field: None for other, field in _NEEDS.items() if other != name}
        alone[name] = replace(given, drafter=[name], **others)
    nobody = replace(given, drafter=["none"], **dict.fromkeys(_NEEDS.values()))
    found = {name: ByWorth(name, one, streams=False) for name, one in alone.items()}
    if streams:
        found["streams"] = ByWorth("streams", nobody)
        for name, one in alone.items():
            found[f"streams + {name}"] = ByWorth(f"streams + {name}", one)
    return found


def controls(mounted: Mounted) -> list[Question]:
    """Make questions of tokens drawn at random, behind which nothing can be foreseen."""
    rng = random.Random(0)
    known = sorted(mounted.tokenizer.get_vocab().values())
    return [
        Question(-1 - number, CONTROL, (mounted.tokenizer.decode(rng.choices(known, k=_WORDS)),))
        for number in range(_CONTROLS)
    ]


def items_of(answered: Answered) -> list[dict[str, Any]]:
    """List every text of every method, with its figures."""
    items = []
    for name in answered.found.runs:
        plain = answered.found.first_runs(MLX_LM)
        for place, run in enumerate(answered.found.first_runs(name)):
            question = answered.questions[answered.of[place]]
            items.append(
                {
                    "question_id": question.number,
                    "category": question.category,
                    "method": name,
                    "tokens": len(run.tokens),
                    "target_calls": run.target_calls,
                    "seconds": run.seconds,
                    "decode_tps": run.decode_tps,
                    "same_output_as_plain": run.tokens == plain[place].tokens,
                }
            )
    return items


def markdown(
    rows: Sequence[Mapping[str, Any]],
    means: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> list[str]:
    """Return the report's lines: a row for each method, a column for each class of texts."""
    drafted = [row for row in rows if row["method"] != MLX_LM and row["task"] != ALL]
    right, texts = (sum(row[key] for row in drafted) for key in ("same_output_as_plain", "items"))
    lines = [
        f"{measured_on(facts)}; model {facts['model']}; weights {facts['weights']}; mlx_lm on "
        f"{facts['plain_weights']} weights; greedy, at most {facts['max_tokens']} tokens a turn.",
        f"{right} of {texts} answers are those of mlx_lm.",
    ]
    classes = list(dict.fromkeys(row["task"] for row in (*drafted, *means)))
    methods: dict[str, dict[str, Any]] = {}
    for row in (*drafted, *means):
        if row["method"] != MLX_LM:
            methods.setdefault(row["method"], {"method": row["method"]})[row["task"]] = row
    columns = {"method": "{method}"}
    for title, cell in (
        ("Speed over mlx_lm behind the first token", "{{{0}[speedup]:.2f}}x"),
        ("Tokens a call", "{{{0}[call_reduction]:.2f}}"),
    ):
        cells = {name: cell.format(name) for name in classes}
        lines += ["", f"{title}:", "", *table(columns | cells, methods.values())]
    return lines


def compare(
    asked: Asked,
    subject: Subject,
    given: Drafters,
    output: Path,
    answers: Path | None = None,
    kept: Path | None = None,
) -> tuple[str, list[dict[str, Any]]]:
    """Answer questions by every method; writes ``rivals-MACHINE``, and its items as JSON lines.

    Args:
        asked: the questions.
        subject: the base and its lossless streams, if it has any.
        given: who drafts; ``draft_model`` is a directory.
        output: the directory of the result files.
        answers: the directory of the answers in Spec-Bench's format, ``METHOD.jsonl``.
        kept: JSONL of runs, see ``report.Kept``.

    Returns:
        the Markdown text and the rows.

    Raises:
        UserError: the streams are shared, model, drafters and questions do not go together, or a
            file cannot be read.
    """
    questions, max_tokens = asked.questions, asked.max_tokens
    base = Base(subject.directory, max_tokens, subject.weights)
    mounted, prompts = mount_lossless(base, subject, questions)
    model = mounted.model
    names = [str(given.draft_model), str(given.datastore)]
    if given.draft_model is not None:
        draft = load_draft_model(given.draft_model, mounted.tokenizer)
        given = replace(given, draft_model=draft)
    check_drafters_fit(given, model)
    facts = base.facts() | {"model": subject.name, "max_tokens": max_tokens}
    runs = Kept(kept, [*depends_on(facts, subject), names])
    measure_costs(mounted, prompts)
    methods = methods_of(given, model.guessing is not None)
    ways = {MLX_LM: mounted.mlx_lm()} | {name: mounted.ours(how) for name, how in methods.items()}
    for way in ways.values():
        way(prompts[0])  # warms up
    forget_answers()
    ways = {name: kept_way(runs, name, way) for name, way in ways.items()}
    foreseen = answer(mounted, questions, ways, list(ways))
    unforeseen = answer(mounted, controls(mounted), ways, list(ways))
    rows = [row for row in rows_of(foreseen, list(ways)) if row["task"] in (*TASKS, ALL)]
    means = means_of(rows)
    of_controls = [row for row in rows_of(unforeseen, list(ways)) if row["task"] == ALL]
    rows += [row | {"task": CONTROL} for row in of_controls]
    name = f"rivals-{machine_suffix(facts)}"
    values = {"facts": facts, "rows": rows, "means": means}
    text = write_report(output, name, values, markdown(rows, means, facts))
    items = [json.dumps(item) for item in (*items_of(foreseen), *items_of(unforeseen))]
    write_text(output / f"{name}.jsonl", "\n".join(items) + "\n")
    if answers is not None:
        write_answers(answers, foreseen, ways, subject.name)
    return text, rows


if __name__ == "__main__":
    from specstream_mlx.cli import main

    sys.argv[1:1] = ["benchmark", "rivals"]
    main()
