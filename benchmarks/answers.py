"""Quality of the demonstration model's answers to typed texts, and the gain of drafts there.

    python -m benchmarks.answers                      # the test texts: what the README reports
    python -m benchmarks.answers --texts dev          # those that may be looked at
    python -m benchmarks.answers --timed 0            # answers alone, nothing is timed

``typed/test`` holds texts that people wrote by hand without sight of the training text, each with
the answers that they would accept, and beginnings of prose. The report has totals alone; ``--show``
prints the answers. Drafts are those of ``generate`` without options. Every text is checked: it must
be that of one token a step, and in lossless mode, where it is timed, mlx_lm's.

``exact``: the answer is one of those accepted, spaces and quotes apart. ``unchanged``: of the texts
that are right as they stand, those that come back as they are. ``perplexity``: per token of the
likeliest accepted answer, the adapter's LoRA mounted, without streams. ``CR`` is tokens a call;
``depth 1``.. the share of calls that accepted so many drafted tokens or more. ``speedup``:
decode-only, over ``mlx_lm`` with the same LoRA mounted, both in turn; ``streams alone``: the same
without prompt lookup; ``least``: of a single text of 30 tokens or more, does drafting ever lose?
``control``: the same of ``mlx_lm`` over itself, which is what this machine's noise comes to.
Without an adapter the prompt says what to do.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specstream_mlx import demonstration
from specstream_mlx.options import FLAG, TEXT, integer, most_tokens, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, commit, machine_suffix, measured_on, table, write_report
from .runner import (
    ALONE,
    MLX_LM,
    ONE_TOKEN,
    STREAMS_ALONE,
    Base,
    ByWorth,
    Compared,
    Mounted,
    TimedRun,
    interleaved,
    measure_costs,
    teacher_forced,
)
from .speedup import check_texts
from .texts import (
    BASE,
    INSTRUCTIONS,
    ORIGIN,
    PROSE,
    TASKS,
    WRITERS,
    Text,
    Texts,
    TextSet,
    adapter_of,
    exact_match,
    names_in,
    rouge_l,
    task_items,
    texts_a_task,
    writer_of,
)

FAR = 30
"""Tokens from which on a single text's speed is reported: those of shorter ones are noise."""
DEPTHS = 4
OURS, CONTROL = "ours", "mlx_lm once more"


def quality(
    outputs: Sequence[str], items: Sequence[tuple[str, Sequence[str]]]
) -> dict[str, float | None]:
    accepted = [answers for _, answers in items]
    pairs = list(zip(outputs, items, strict=True))
    right = [(out, [text]) for out, (text, answers) in pairs if text in answers]
    return {
        "exact": exact_match(outputs, accepted),
        "rouge_l": rouge_l(outputs, accepted),
        "unchanged": exact_match(*zip(*right, strict=True)) if right else None,
    }


def perplexity(mounted: Mounted, texts: Sequence[Text]) -> float:
    """Per token of the accepted answers, of each text's the likeliest."""
    total, count = 0.0, 0
    tokenizer = mounted.tokenizer
    for text in texts:
        tokens = [
            [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
            for answer in text.answers
        ]
        scores = [teacher_forced(mounted.plain, text.prompt, ids)[0] for ids in tokens]
        pairs = zip(scores, map(len, tokens), strict=True)
        score, length = max(pairs, key=lambda pair: pair[0] / pair[1])
        total, count = total + score, count + length
    return math.exp(-total / count)


def drafted(runs: Sequence[TimedRun]) -> dict[str, Any]:
    """Summarize how many drafts were accepted, and at what cost in nodes."""
    met = [length - 1 for run in runs for length in run.lengths]
    return {
        "call_reduction": sum(len(run.tokens) for run in runs) / sum(r.target_calls for r in runs),
        "depths": [sum(m >= depth for m in met) / len(met) for depth in range(1, DEPTHS + 1)],
        "nodes": sum(run.drafted for run in runs) / sum(r.target_calls for r in runs),
        "tokens": sum(len(run.tokens) for run in runs),
    }


def compared(mounted: Mounted, prompts: Sequence[list[int]], rounds: int) -> Compared[str]:
    """Ours, streams alone and mlx_lm twice on the same texts, in turn."""
    measure_costs(mounted, prompts)
    plainly = mounted.mlx_lm()
    ways = {MLX_LM: plainly, CONTROL: plainly, OURS: mounted.ours(ByWorth())}
    ways[STREAMS_ALONE] = mounted.ours(ALONE[STREAMS_ALONE])
    return interleaved(prompts, ways, rounds)


def speed(compared: Compared[str]) -> dict[str, Any]:
    """Decode-only speed over ``mlx_lm``: of all texts, of the slowest, of what comes later."""
    plain = compared.runs[MLX_LM]
    long = {number for number, runs in enumerate(plain) if len(runs[0].tokens) >= FAR}
    row: dict[str, Any] = {"streams_alone": compared.speedup(STREAMS_ALONE, MLX_LM)}
    for way, suffix in ((OURS, ""), (CONTROL, "_control")):
        ratios = compared.ratios(way, MLX_LM)
        row[f"speedup{suffix}"] = compared.speedup(way, MLX_LM)
        row[f"ratios{suffix}"] = {number: round(ratio, 3) for number, ratio in ratios.items()}
        row[f"least{suffix}"] = min((ratios[number] for number in long & set(ratios)), default=None)
    return row


def measure(
    mounted: Mounted, task: str, texts: Texts, timed: int, rounds: int, shown: bool
) -> dict[str, Any]:
    """The row of one task, or of prose, with what is mounted."""
    writer = writer_of(mounted.model)
    given = texts.of_task(mounted.model, mounted.tokenizer, task)
    prompts = [text.prompt for text in given]
    ours, plainly = mounted.ours(ByWorth()), mounted.ours(ONE_TOKEN)
    runs = [ours(prompt) for prompt in track(prompts, f"{task}, {writer}")]
    expected = [plainly(prompt).tokens for prompt in prompts]
    decoded = [[run] for run in runs]
    row = {"task": task, "writer": writer, "method": OURS, "items": len(given)}
    row |= drafted(runs)
    items = [] if task == PROSE else task_items(texts.origin, task, texts.count)
    row |= dict.fromkeys(("exact", "unchanged", "rouge_l", "perplexity"))
    if items:
        row |= quality([run.text.strip() for run in runs], items)
        row["perplexity"] = perplexity(mounted, given)
    if timed:
        turns = compared(mounted, prompts[:timed], rounds)
        row |= speed(turns)
        for way in (OURS, MLX_LM) if mounted.model.mode == "lossless" else (OURS,):
            for number, more in enumerate(turns.runs[way]):
                decoded[number] += more
    pairs = zip(decoded, expected, strict=True)
    row["same_output_as_plain"] = sum(
        all(run.tokens == right for run in some) for some, right in pairs
    )
    if shown and not items:  # nobody can say what prose should be
        note("\n".join(run.text.strip() for run in runs))
    elif shown:
        for (text, accepted), run in zip(items, runs, strict=True):
            mark = "=" if exact_match([run.text], [accepted]) else " "
            note(f"{mark} {text}\n    {run.text.strip()}\n    ({accepted[0]})")
    return row


COLUMNS = {
    "texts": "{task}",
    "number": "{items}",
    "exact": "{exact:.2f}",
    "unchanged": "{unchanged:.2f}",
    "ROUGE-L": "{rouge_l:.2f}",
    "perplexity": "{perplexity:.2f}",
    "CR": "{call_reduction:.2f}",
    "nodes a call": "{nodes:.1f}",
    **{f"depth {depth + 1}": f"{{depths[{depth}]:.2f}}" for depth in range(DEPTHS)},
}
TIMED_COLUMNS = {
    "speedup": "{speedup:.2f}x",
    "streams alone": "{streams_alone:.2f}x",
    "control": "{speedup_control:.2f}x",
    "least": "{least:.2f}x",
    "least, control": "{least_control:.2f}x",
}


def markdown(rows: Sequence[dict[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """The lines of the report: a table for each writer."""
    right = sum(row["same_output_as_plain"] for row in rows)
    timed = facts["timed"]
    about = (
        f"{measured_on(facts)}; {facts['commit']}; {facts['model']}, weights {facts['weights']}; "
        f"{facts['texts']}, greedy, at most {facts['max_tokens']} tokens"
    )
    if timed:
        about += f"; {timed} texts of each timed {facts['rounds']} times"
    lines = [f"{about}.", "", f"{right} of {sum(r['items'] for r in rows)} texts are the same as "
             "one token a step."]  # fmt: skip
    columns = COLUMNS | (TIMED_COLUMNS if timed else {})
    for writer in dict.fromkeys(row["writer"] for row in rows):
        of_writer = [row for row in rows if row["writer"] == writer]
        title = "The base alone" if writer == BASE else "Adapters"
        if timed:
            title += over_mlx_lm(of_writer)
        lines += ["", f"{title}:", "", *table(columns, of_writer)]
    return lines


def over_mlx_lm(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rest of a table's title: the mean over tasks, and the slowest of all texts."""
    tasks = [row for row in rows if row["task"] != PROSE] or rows
    means = (
        statistics.geometric_mean([row[key] for row in tasks])
        for key in ("speedup", "streams_alone")
    )
    text = ": {:.2f}x over mlx_lm, by streams alone {:.2f}x".format(*means)
    far = [row for row in rows if row["least"] is not None]
    if far:
        least, control = (min(row[key] for row in far) for key in ("least", "least_control"))
        text += f", no text of {FAR} tokens or more below {least:.2f}x (control: {control:.2f}x)"
    return text


def main(
    texts: TextSet = ORIGIN,
    items: int = texts_a_task(100),
    timed: int = option(12, integer(0), "Texts of a task that are timed."),
    rounds: int = option(5, integer(1), "Runs of each timed text."),
    only: str = TASKS,
    writers: str = option("", TEXT, "Who answers: base, adapters; default: both."),
    max_tokens: int = most_tokens(160, least=2),
    label: str = option("", TEXT, "Part of the result files' name.", "--name"),
    show: bool = option(False, FLAG, "Print the answers, too."),
    output: Path = OUTPUT,
) -> None:
    """Score the demonstration model's answers to typed texts, and its drafts."""
    chosen = names_in(only, [*INSTRUCTIONS, PROSE], "task")
    wanted = names_in(writers, WRITERS, "writer")
    base = Base(demonstration.base_path(), max_tokens)
    decoded = Texts(texts, items)
    facts = base.facts() | {
        "commit": commit(),
        "model": demonstration.MODEL,
        "texts": decoded.facts()["texts"],
        "timed": timed,
        "rounds": rounds,
        "max_tokens": max_tokens,
    }
    name = "-".join(filter(None, ("answers", texts, label, machine_suffix(facts))))
    rows: list[dict[str, Any]] = []
    text = ""
    for writer, task in [(writer, task) for writer in wanted for task in chosen]:
        mounted = base.mount(adapter_of(task, writer))
        rows.append(measure(mounted, task, decoded, timed, rounds, show))
        text = write_report(output, name, {"facts": facts, "rows": rows}, markdown(rows, facts))
    print(text)
    check_texts(rows)


if __name__ == "__main__":
    program(main)()
