"""Are the demonstration model's answers any good, and do its drafts help with them? On typed texts.

    python -m benchmarks.answers                      # the test texts: what the README reports
    python -m benchmarks.answers --texts dev          # those that may be looked at
    python -m benchmarks.answers --timed 0            # answers alone, nothing is timed

``typed/test`` holds texts that people wrote by hand without sight of the training text, each with
the answers that they would accept. The report has totals alone; ``--show`` prints the answers.

``exact``: the answer is one of those accepted, spaces and quotes apart. ``unchanged``: of the texts
that are right as they stand, those that come back as they are. ``from the text``: no name and no
number that neither the text nor an accepted answer has (``invented``). ``perplexity``: per token of
the likeliest accepted answer, the adapter's LoRA mounted, without streams. ``CR`` is tokens a call;
``depth 1``.. the share of calls that accepted so many drafted tokens or more; ``by lookup``: of the
accepted drafts, those that only prompt lookup proposed. ``speedup``: decode-only, over ``mlx_lm``
with the same LoRA mounted, both in turn; ``streams alone``: the same without prompt lookup;
``later``: of the tokens behind the 16th; ``control``: the same of ``mlx_lm`` over itself. Without
an adapter (``lossless``) the base is told what to do.

``typed/edges.jsonl`` has texts that an adapter was not made for: those of other tasks or in other
languages, a word, 3,000 characters. Of their answers is counted what comes back as it is, and what
invents nothing.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, Literal

import mlx.core as mx
import mlx.nn as nn
import typer

from specstream_mlx import demonstration
from specstream_mlx.drafting.lookup import Lookup
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.terminal.errors import one_line_errors
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import track

from .invented import invented
from .report import RESULTS, Output, commit, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, ONE_TOKEN, STREAMS_ALONE, Base, Mounted, Run, interleaved, measure_costs
from .speedup import check_texts
from .texts import (
    MODES,
    TYPED,
    Modes,
    Tasks,
    Text,
    Texts,
    adapter_of,
    chosen_tasks,
    exact_match,
    names_in,
    rouge_l,
    task_items,
)

EARLY = 16
"""Tokens of a text that are left out of ``later``."""
DEPTHS = 4
_NGRAM = 4
_LONGEST_EDGE = 1000
"""Tokens of an answer to a text that an adapter was not made for, which may be a long one."""
OURS, CONTROL = "ours", "mlx_lm once more"


def by_lookup(prompt: Sequence[int], run: Run) -> int:
    """How many of the accepted drafts only prompt lookup had proposed."""
    lookup, found = Lookup(prompt, _NGRAM), 0
    for tokens, guesses in run.calls:
        drafts = tokens[:-1]
        for depth, token in enumerate(drafts):
            path = drafts[:depth]
            if token not in dict(guesses.behind(path)):
                found += token in dict(lookup.children(path))
        lookup.accept(tokens)
    return found


def quality(
    task: str, outputs: Sequence[str], items: Sequence[tuple[str, Sequence[str]]]
) -> dict[str, float | None]:
    """How good answers are.

    Args:
        task: its name.
        outputs: the answers.
        items: for each the text, and what is accepted.
    """
    accepted = [answers for _, answers in items]
    pairs = list(zip(outputs, items, strict=True))
    right = [(out, [text]) for out, (text, answers) in pairs if text in answers]
    made_up = [bool(invented(task, out, " ".join([text, *known]))) for out, (text, known) in pairs]
    return {
        "exact": exact_match(outputs, accepted),
        "rouge_l": rouge_l(outputs, accepted),
        "unchanged": exact_match(*zip(*right, strict=True)) if right else None,
        "from_text": 1 - statistics.mean(made_up),
    }


def log_likelihood(model: nn.Module, prompt: Sequence[int], target: Sequence[int]) -> float:
    """Sum of the target tokens' log-probabilities behind ``prompt``, in one forward pass."""
    logits = model(mx.array([*prompt, *target[:-1]])[None])[0, len(prompt) - 1 :]
    logits = logits.astype(mx.float32)
    picked = mx.take_along_axis(logits, mx.array(target)[:, None], axis=-1)[:, 0]
    return (picked - mx.logsumexp(logits, axis=-1)).sum().item()


def perplexity(mounted: Mounted, texts: Sequence[Text]) -> float:
    """Per token of the accepted answers, of each text's the likeliest."""
    total = count = 0
    tokenizer = mounted.tokenizer
    for text in texts:
        tokens = [
            [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
            for answer in text.answers
        ]
        scores = [log_likelihood(mounted.plain, text.prompt, one) for one in tokens]
        pairs = zip(scores, map(len, tokens), strict=True)
        score, length = max(pairs, key=lambda pair: pair[0] / pair[1])
        total, count = total + score, count + length
    return math.exp(-total / count)


def drafted(prompts: Sequence[Sequence[int]], runs: Sequence[Run]) -> dict[str, Any]:
    """How well drafts were met."""
    met = [len(tokens) - 1 for run in runs for tokens, _ in run.calls]
    lookup = sum(by_lookup(prompt, run) for prompt, run in zip(prompts, runs, strict=True))
    return {
        "call_reduction": sum(len(run.tokens) for run in runs) / sum(r.target_calls for r in runs),
        "depths": [sum(m >= depth for m in met) / len(met) for depth in range(1, DEPTHS + 1)],
        "by_lookup": lookup / max(1, sum(met)),
        "tokens": sum(len(run.tokens) for run in runs),
    }


def speed(mounted: Mounted, prompts: Sequence[list[int]], rounds: int) -> dict[str, Any]:
    """Decode-only speed over ``mlx_lm``, from the second token on and from the 17th on."""
    measure_costs(mounted, prompts)
    plainly = mounted.mlx_lm()
    ways = {MLX_LM: plainly, CONTROL: plainly, OURS: mounted.ours(None)}
    ways[STREAMS_ALONE] = mounted.ours(STREAMS_ALONE)
    found = interleaved(prompts, ways, rounds)
    return {
        "streams_alone": found.speedup(STREAMS_ALONE, MLX_LM),
        "speedup": found.speedup(OURS, MLX_LM),
        "control": found.speedup(CONTROL, MLX_LM),
        "later": _later(found.runs[OURS], found.runs[MLX_LM]),
        "later_control": _later(found.runs[CONTROL], found.runs[MLX_LM]),
    }


def _later(ours: Sequence[Sequence[Run]], plain: Sequence[Sequence[Run]]) -> float | None:
    """The geometric mean over texts of the rates behind the first tokens, medians of the rounds."""
    ratios = []
    for own, others in zip(ours, plain, strict=True):
        rates = [[r.rate_behind(EARLY) for r in runs] for runs in (own, others)]
        if all(chain(*rates)):
            ratios.append(statistics.median(rates[0]) / statistics.median(rates[1]))
    return statistics.geometric_mean(ratios) if ratios else None


@dataclass(frozen=True)
class Job:
    """What a line of the table is made of.

    Attributes:
        mode: of the streams.
        task: whose texts are answered.
    """

    mode: str
    task: str


def measure(
    base: Base, job: Job, texts: Texts, timed: int, rounds: int, shown: bool
) -> dict[str, Any]:
    """The row of one task in one mode."""
    mounted = base.mount(adapter_of(job.task, job.mode))
    found = texts.of_task(mounted.model, mounted.tokenizer, job.task)
    items = task_items(texts.origin, job.task, texts.count)
    ours, plainly = mounted.ours(None), mounted.ours(ONE_TOKEN)
    prompts = [text.prompt for text in found]
    runs = [ours(prompt) for prompt in track(prompts, f"{job.task}, {job.mode}")]
    expected = [plainly(prompt) for prompt in prompts]
    row = {"task": job.task, "mode": job.mode, "method": OURS, "items": len(found)}
    row |= quality(job.task, [run.text.strip() for run in runs], items)
    row |= drafted(prompts, runs) | {"perplexity": perplexity(mounted, found)}
    pairs = zip(runs, expected, strict=True)
    row["same_output_as_plain"] = sum(run.tokens == right.tokens for run, right in pairs)
    if timed:
        row |= speed(mounted, prompts[:timed], rounds)
    if shown:
        for (text, accepted), run in zip(items, runs, strict=True):
            mark = "=" if exact_match([run.text], [accepted]) else " "
            note(f"{mark} {text}\n    {run.text.strip()}\n    ({accepted[0]})")
    return row


def edges(base: Base, shown: bool) -> dict[str, int]:
    """Answer the texts that the adapters were not made for, and count what their answers do."""
    items = [json.loads(line) for line in (TYPED / "edges.jsonl").read_text("utf-8").splitlines()]
    counts = {"texts": len(items), "as they are": 0, "nothing invented": 0}
    for item in track(items, "edges"):
        task, text = item["task"], item["input"]
        mounted = replace(base.mount(adapter_of(task, "shared")), max_tokens=_LONGEST_EDGE)
        template = mounted.model.prompt_template
        run = mounted.ours(None)(chat_prompt(mounted.tokenizer, text, template))
        counts["as they are"] += bool(exact_match([run.text], [[text]]))
        counts["nothing invented"] += not invented(task, run.text, text)
        if shown:
            note(f"{task}: {text}\n    {run.text.strip()}")
    return counts


COLUMNS = {
    "task": "{task}",
    "texts": "{items}",
    "exact": "{exact:.2f}",
    "unchanged": "{unchanged_shown}",
    "ROUGE-L": "{rouge_l:.2f}",
    "from the text": "{from_text:.2f}",
    "perplexity": "{perplexity:.2f}",
    "CR": "{call_reduction:.2f}",
    **{f"depth {depth + 1}": f"{{depths[{depth}]:.2f}}" for depth in range(DEPTHS)},
    "by lookup": "{by_lookup:.2f}",
}
TIMED_COLUMNS = {
    "speedup": "{speedup:.2f}x",
    "streams alone": "{streams_alone:.2f}x",
    "control": "{control:.2f}x",
    "later": "{later_shown}",
    "later, control": "{later_control_shown}",
}


def markdown(rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> list[str]:
    """The lines of the report: a table for each mode."""
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
    for mode in dict.fromkeys(row["mode"] for row in rows):
        own = [row for row in rows if row["mode"] == mode]
        title = "Adapters (shared mode)" if mode == "shared" else "The base alone (lossless mode)"
        if timed:
            means = (
                statistics.geometric_mean([r[key] for r in own])
                for key in ("speedup", "streams_alone")
            )
            title += ": {:.2f}x over mlx_lm, by streams alone {:.2f}x".format(*means)
        lines += ["", f"{title}:", "", *table(columns, map(_with_gaps, own))]
    if counts := facts["edges"]:
        lines += ["", f"Of {counts['texts']} texts that the adapters were not made for, "
                  f"{counts['as they are']} come back as they are, and the answers to "
                  f"{counts['nothing invented']} invent no name and no number."]  # fmt: skip
    return lines


def _with_gaps(row: dict[str, Any]) -> dict[str, Any]:
    """The row with figures that it may lack as text."""
    shown = {"unchanged_shown": _shown(row["unchanged"])}
    for name in ("later", "later_control"):
        shown[f"{name}_shown"] = _shown(row.get(name), "x")
    return row | shown


def _shown(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


@one_line_errors
def main(
    texts: Annotated[
        Literal["test", "dev", "held-out"], typer.Option(help="Which texts are answered.")
    ] = "test",
    items: Annotated[int, typer.Option(help="Texts of a task at most.", min=1)] = 100,
    timed: Annotated[int, typer.Option(help="Texts of a task that are timed.", min=0)] = 12,
    rounds: Annotated[int, typer.Option(help="Runs of each timed text.", min=1)] = 5,
    only: Tasks = "",
    modes: Modes = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=2)] = 160,
    show: Annotated[bool, typer.Option("--show", help="Print the answers, too.")] = False,
    output: Output = RESULTS,
) -> None:
    """Score the demonstration model's answers to typed texts, and its drafts."""
    chosen, wanted = chosen_tasks(only), names_in(modes, MODES, "mode")
    base = Base(demonstration.base_path(), max_tokens)
    facts = base.facts() | {
        "commit": commit(),
        "model": demonstration.MODEL,
        "texts": Texts(texts, items).facts()["texts"],
        "timed": timed,
        "rounds": rounds,
        "max_tokens": max_tokens,
        "edges": edges(base, show) if "shared" in wanted and not only else None,
    }
    name = "-".join(("answers", texts, machine_suffix(facts)))
    rows: list[dict[str, Any]] = []
    text = ""
    for job in [Job(mode, task) for mode in wanted for task in chosen]:
        rows.append(measure(base, job, Texts(texts, items), timed, rounds, show))
        text = write_report(output, name, {"facts": facts, "rows": rows}, markdown(rows, facts))
    print(text)
    check_texts(rows)


if __name__ == "__main__":
    typer.run(main)
