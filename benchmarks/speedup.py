"""Speed of drafting against plain decoding: ``specstream-mlx benchmark speedup``.

Every text is decoded by every way in turn (batch 1, greedy), in another random order each time, so
a way and mlx_lm always run within seconds of each other; see ``runner``. Lines of a base are
compared with mlx_lm on the base, lines of an adapter with mlx_lm on the base with that adapter's
LoRA. mlx_lm runs on the weights that are fastest for it, unless ``--weights`` says
how both hold them. Every text is checked: in lossless mode it must be mlx_lm's, in shared mode
that of one token a step.

``speedup`` is the median over texts of (decode-only tokens/s) / (mlx_lm's on the same text); ``CR``
is target calls of plain decoding / target calls, which is also the accepted length; ``extra
parameters`` are what a method adds to the base.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from specstream_mlx import DraftSettings, SpeculativeModel, UserError, bundled
from specstream_mlx.adapters.description import describe
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import track

from .report import machine_suffix, measured_on, table, write_report
from .runner import (
    CHAIN,
    MLX_LM,
    ONE_TOKEN,
    PRUNED,
    TREE,
    Base,
    ByWorth,
    Drafts,
    Mounted,
    interleaved,
    measure_costs,
    mlx_lm_by_itself,
)
from .texts import ADAPTERS, BASE, WRITERS, Texts, adapter_of, score, writer_of

TableRows = Sequence[Mapping[str, Any]]

MODES = ("lossless", "shared")

COLUMNS = {
    "task": "{task}",
    "writer": "{writer}",
    "adapter": "{adapter}",
    "method": "{method}",
    "speedup": "{speedup:.2f}x",
    "CR": "{call_reduction:.2f}",
    "speedup / CR": "{speedup_over_cr:.2f}",
    "tokens/s": "{decode_tps:.0f}",
    "quality": "{metric} {quality:.2f}",
    "extra parameters": "{extra_parameters:,}",
    "nodes a call": "{nodes:.1f}",
    "ms per call": "{ms_per_call:.1f}",
}
"""Every column that a suite may show."""


@dataclass(frozen=True)
class Suite:
    question: str  # what it answers
    ways: Mapping[str, Mapping[str, Drafts]]  # ways to draft by name, for each mode of the streams
    columns: Sequence[str]  # of the table, of ``COLUMNS``
    items: int  # texts of a task
    rounds: int = 1  # how often each is decoded
    max_tokens: int = 160  # of a text
    seconds: float | None = None  # after which no further task is begun
    writers: Sequence[str] = WRITERS  # of what is bundled
    summary: Callable[[TableRows], list[str]] = lambda rows: []  # sentences below the table


# speedup: the paper's fixed trees -----------------------------------------------------------

LIKELY_CHAIN = replace(CHAIN, draft_threshold=LIKELY_DRAFTS.draft_threshold)

SPEEDUP = Suite(
    "How much faster are the paper's trees than plain decoding?",
    {
        "lossless": {
            "empty tree": ONE_TOKEN,
            "SS lossless, chain": CHAIN,
            "SS lossless, tree": TREE,
            "SS lossless, tree, pruned": PRUNED,
            "SS lossless, likely drafts": LIKELY_DRAFTS,
        },
        "shared": {
            "empty tree": ONE_TOKEN,
            "SS shared, chain": CHAIN,
            "SS shared, tree": TREE,
            "SS shared, tree, pruned": PRUNED,
            "SS shared, chain, likely drafts": LIKELY_CHAIN,
            "SS shared, tree, likely drafts": LIKELY_DRAFTS,
        },
    },
    (
        *("task", "adapter", "method", "speedup", "CR", "speedup / CR", "tokens/s", "quality"),
        "extra parameters",
    ),
    items=20,
)

# rule: what generate does without options, against fixed trees ------------------------------

RULE_WAY = "the rule"


def _rule_summary(rows: TableRows) -> list[str]:
    """The rule's speed of each writer, over plain decoding and over the best fixed tree."""
    lines: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        lines[row["writer"]][row["task"]][row["method"]] = row["speedup"]
    text = []
    for writer, by_task in lines.items():
        speeds = [speeds_of.pop(RULE_WAY) for speeds_of in by_task.values()]
        shares = [
            speed / max(fixed.values())
            for speed, fixed in zip(speeds, by_task.values(), strict=True)
        ]
        text.append(
            f"Geometric means, {writer}: {geometric_mean(speeds):.2f}x (least {min(speeds):.2f}x), "
            f"over the best fixed way of each task {geometric_mean(shares):.2f} "
            f"(least {min(shares):.2f})."
        )
    return text


_FIXED = {
    "chain": CHAIN,
    "tree": TREE,
    "likely tree": LIKELY_DRAFTS,
    "likely tree, lookup": replace(LIKELY_DRAFTS, lookup=True),
}

RULE = Suite(
    "Is adaptive drafting faster than any fixed tree?",
    {mode: {RULE_WAY: ByWorth(), **_FIXED} for mode in MODES},
    ("task", "writer", "method", "speedup", "CR", "nodes a call", "tokens/s"),
    items=12,
    rounds=4,
    max_tokens=96,
    summary=_rule_summary,
)

# quick: the answer of a minute ----------------------------------------------------------------


def _in_words(rows: TableRows) -> list[str]:
    """How much faster the rule is, over all texts."""
    speeds = {row["task"]: row["speedup"] for row in rows if row["method"] == RULE_WAY}
    mean = geometric_mean(speeds.values())
    words = f"{mean:.2f} times as fast as mlx_lm"
    if mean < 1.02:
        words = f"no faster than mlx_lm ({mean:.2f} times its speed)"
    least, most = min(speeds, key=lambda t: speeds[t]), max(speeds, key=lambda t: speeds[t])
    among = f", from {speeds[least]:.2f} ({least}) to {speeds[most]:.2f} ({most})"
    return [f"On this machine drafting is {words}{among if len(speeds) > 1 else ''}."]


QUICK = Suite(
    "How much faster is it here?",
    {mode: {RULE_WAY: ByWorth()} for mode in MODES},
    ("task", "method", "speedup", "CR", "tokens/s"),
    items=1,
    max_tokens=40,
    summary=_in_words,
    seconds=25,
    writers=(ADAPTERS,),
)

SUITES = {"quick": QUICK, "rule": RULE, "speedup": SPEEDUP}


# Jobs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteCase:
    writer: str  # who answers, see ``texts.WRITERS``
    mode: str  # of the streams
    adapter: Path | None  # the directory that is mounted; ``None``: the bare base
    task: str  # whose texts are decoded


def cases_of(suite: Suite, chosen: Sequence[str]) -> list[SuiteCase]:
    """The cases of a suite, with the bundled adapters of these tasks."""
    cases = []
    for task in chosen:
        for writer in suite.writers:
            if writer == BASE or task in bundled.adapter_names():
                adapter = adapter_of(task, writer)
                streams = describe(adapter).stream_config
                cases.append(
                    SuiteCase(writer, streams.mode if streams else "lossless", adapter, task)
                )
    return [case for case in cases if case.mode in suite.ways]


def drafting_ways(suite: Suite, mode: str, model: SpeculativeModel) -> dict[str, Drafts]:
    """The suite's ways; without streams those that draft all the same."""
    ways = suite.ways[mode]
    if model.streams is None:
        ways = {
            name: drafts
            for name, drafts in ways.items()
            if isinstance(drafts, ByWorth) or drafts.makers
        }
    if not ways:
        raise UserError(
            "every way of this --suite drafts with streams, and no streams are mounted: expected "
            "--adapter-path, or --suite rule"
        )
    return dict(ways)


def measure(
    base: Base, case: SuiteCase, suite: Suite, texts: Texts, rounds: int, warm_up: bool = True
) -> list[dict[str, Any]]:
    """The rows of one job, mlx_lm's first."""
    mounted = base.mount(case.adapter)
    drafts = drafting_ways(suite, case.mode, mounted.model)
    found_texts = texts.of_task(mounted.model, mounted.tokenizer, case.task)
    prompts = [text.prompt for text in found_texts]
    if RULE_WAY in drafts and suite.seconds is None:
        measure_costs(mounted, prompts)
    ways = {MLX_LM: mounted.mlx_lm()}
    ways |= {name: mounted.ours(draft) for name, draft in drafts.items()}
    compared = interleaved(prompts, ways, rounds, warm_up=warm_up)
    expected = compared.first_runs(MLX_LM)
    if mounted.model.mode == "shared":  # the text depends on the streams, which mlx_lm does not run
        expected = [mounted.ours(ONE_TOKEN)(prompt) for prompt in prompts]
    rows = []  # streams alone leave the base as it is: no adapter, as far as mlx_lm is concerned
    adapter = "none" if case.writer == BASE or case.adapter is None else case.adapter.name
    for name in ways:
        row = {
            "task": case.task,
            "writer": case.writer,
            "adapter": adapter,
            "method": name,
            **compared.figures(name, MLX_LM),
            "same_output_as_plain": compared.same(name, expected),
            "items": len(prompts),
            "extra_parameters": extra_parameters(mounted, name == MLX_LM, drafts.get(name)),
        }
        if not texts.given:
            outputs = [run.text for run in compared.first_runs(name)]
            metric, quality = score(case.task, outputs, [text.answers for text in found_texts])
            row |= {"metric": metric, "quality": round(quality, 3)}
        rows.append(row)
    return rows


def extra_parameters(mounted: Mounted, plain: bool, drafts: Drafts | None) -> int:
    """Parameters that a way to draft, or mlx_lm's plain decoding, adds to the base's."""
    adapter = mounted.model.adapter
    if adapter is None:
        return 0
    lora = sum(tensor.size for tensor in adapter.lora.values())
    without_streams = isinstance(drafts, DraftSettings) and (
        not drafts.speculation or drafts.num_streams == 0
    )
    if plain or (without_streams and mounted.model.mode == "lossless"):
        return lora
    # Shared text depends on streams that do not draft.
    return lora + sum(tensor.size for tensor in adapter.stream_tensors.values())


def markdown(
    suite: Suite, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[str]:
    ratio = facts["packed_over_expanded"]
    times = f", {facts['rounds']} times each" if facts["rounds"] > 1 else ""
    about = (
        f"{measured_on(facts)}; model {facts['model']}; weights {facts['weights']}; mlx_lm on "
        f"{facts['plain_weights']} weights"
        f"{f' (packed are {ratio:.2f}x as fast for it)' if ratio else ''}; "
        f"{facts['streams']} streams; {facts['texts']}, {facts['items']} a task{times}, greedy."
    )
    right = sum(row["same_output_as_plain"] for row in rows if row["method"] != MLX_LM)
    decoded = sum(row["items"] for row in rows if row["method"] != MLX_LM)
    lines = [suite.question]
    for sentence in suite.summary(rows):
        lines += ["", sentence]
    if stock := facts.get("mlx_lm_by_itself"):
        last = rows[-1]
        lines[-1] += (
            f" As a user runs it ({stock['weights']} weights, {stock['dtype']}) mlx_lm writes "
            f"{stock['generation_tps']:.2g} tokens a second, drafting {last['decode_tps']:.2g} "
            f"({last['task']}): {last['decode_tps'] / stock['generation_tps']:.1f} times as fast."
        )
    lines += ["", about, f"{right} of {decoded} texts are those of plain decoding."]
    scored = all("quality" in row for row in rows)
    columns = {name: COLUMNS[name] for name in suite.columns if scored or name != "quality"}
    return [*lines, "", *table(columns, rows)]


def check_texts(rows: Sequence[Mapping[str, Any]]) -> None:
    """End with exit code 1 where a text is not plain decoding's; on Metal near-ties may differ."""
    for row in rows:
        wrong = row["items"] - row["same_output_as_plain"]
        if wrong and row["method"] != MLX_LM and device.backend() == "cpu":
            where = ", ".join(row[name] for name in ("task", "writer", "method") if name in row)
            note(
                f"error: {where}: {wrong} of {row['items']} texts differ from plain decoding, "
                "expected none"
            )
            raise SystemExit(1)


@dataclass(frozen=True)
class Subject:
    directory: Path  # of the base
    name: str  # what a report calls it
    adapter: Path | None = None  # mounted for every task; ``None``: the bare base
    each_bundled: bool = False  # mount what is bundled for each task and writer instead
    weights: str = "auto"  # how ours are held: ``auto``, ``packed`` or ``expanded``


def compare(
    suite_name: str,
    texts: Texts,
    tasks: Sequence[str],
    subject: Subject,
    output: Path,
    *,
    rounds: int | None = None,
    max_tokens: int | None = None,
    as_stored: bool = False,
) -> tuple[str, list[dict[str, Any]]]:
    """Run a suite; the files ``SUITE-MACHINE`` grow with every comparison that is through.

    What is ``None`` is the suite's: how often each text is decoded, and how far. ``as_stored``:
    mlx_lm is timed as a user runs it, too, as it always is on a GPU at the end of the quick suite.
    """
    suite, began = SUITES[suite_name], time.monotonic()
    rounds = rounds or suite.rounds
    as_fastest = subject.weights == "auto" and suite.seconds is None  # finding out takes a minute
    most = max_tokens or suite.max_tokens
    base = Base(subject.directory, most, subject.weights, fastest_baseline=as_fastest)
    if not subject.each_bundled:
        model = base.mount(subject.adapter).model
        chosen = SuiteCase(writer_of(model), model.mode, subject.adapter, "")
        if chosen.mode not in suite.ways:
            expected = " or ".join(suite.ways)
            raise UserError(
                f"{subject.adapter} has {chosen.mode} streams, expected {expected} for this --suite"
            )
        drafting_ways(suite, chosen.mode, model)
        cases = [replace(chosen, task=task) for task in tasks]
    else:
        cases = cases_of(suite, tasks)
    trained = subject.each_bundled or model.streams is not None
    facts = base.facts() | {
        "model": subject.name,
        **texts.facts(),
        "rounds": rounds,
        "streams": "trained" if trained else "no",
    }
    file = f"{suite_name}-{machine_suffix(facts)}"
    rows: list[dict[str, Any]] = []
    text = ""

    def reported() -> str:
        values = {"facts": facts, "rows": rows}
        return write_report(output, file, values, markdown(suite, rows, facts))

    note(f"Writing {output / file}.md and .json")
    for case in track(cases, suite_name):
        if rows and suite.seconds and time.monotonic() - began > suite.seconds:
            left = len(cases) - len({(row["task"], row["writer"]) for row in rows})
            note(f"{left} of {len(cases)} tasks are left out, to end within a minute")
            break
        warm_up = suite.seconds is None or not rows
        rows += measure(base, case, suite, texts, rounds, warm_up)
        text = reported()
    if as_stored or (suite.seconds and device.backend() != "cpu"):
        prompt = base.tokenizer.encode("hello")[-1:]  # to read more may take seconds
        facts |= {"mlx_lm_by_itself": mlx_lm_by_itself(base.model, prompt)}
        text = reported()
    return text, rows
