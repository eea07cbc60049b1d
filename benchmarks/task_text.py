"""Whether the generated task text is a fair test: overlap, perplexity, and how templated it is.

    python -m benchmarks.task_text                  # the bundled model, all eight tasks
    python -m benchmarks.task_text --items 20 --tasks sql,proofread

Text that repeats its templates could be drafted without any streams. So the greedy output of the
target model on held-out items is replayed with two drafters that need no network: prompt lookup,
and a back-off 5-gram of the training targets. The target model is the task's adapter where there
is one, else the base. The Markdown table and the JSON file go to ``benchmarks/results``.

Columns: ``seen`` = share of held-out targets (contents) that also occur verbatim in the training
text; ``perplexity`` = per token of the held-out targets, the end token included, teacher forced
(``adapter``: its LoRA mounted, no streams); ``CR`` = tokens / target calls; ``SS`` = the best CR
of Speculative Streaming on the task in a file of ``benchmarks.speedup``; ``too templated`` = the
5-gram's CR comes within 25% of it.
"""

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import mlx.core as mx
import mlx.nn as nn
import typer
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import SpeculativeModel, UserError, bundled, load
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.prompts import chat_prompt

from .drafting_baselines import Drafter, n_gram, prompt_lookup, target_calls
from .report import RESULTS, Output, measured_on, table, write_report
from .runner import Mounted
from .texts import Tasks, chosen_tasks, generator, held_out_texts

if TYPE_CHECKING:
    from specstream_mlx.convert.demo_model.tasks import Item

DRAFT_LENGTH = 4
MOST_SEEN = 0.01
NEAR = 0.75


@dataclass(frozen=True)
class SpeedupFile:
    """What ``benchmarks.speedup`` measured.

    Attributes:
        name: of the file.
        best: the best CR of Speculative Streaming by task.
    """

    name: str
    best: dict[str, float]


@dataclass(frozen=True)
class Row:
    """One task.

    Attributes:
        task: its name.
        targets_seen: share of held-out targets among the training targets.
        contents_seen: the same of the contents.
        base_perplexity: of the held-out targets.
        adapter_perplexity: the same, ``None`` where the task has no adapter.
        target: whose greedy output is replayed, ``base`` or ``adapter``.
        lookup_cr: call reduction of prompt lookup.
        n_gram_cr: call reduction of the 5-gram.
        ss_cr: the best of Speculative Streaming, ``None`` where nothing was measured.
        too_templated: see ``too_templated``.
    """

    task: str
    targets_seen: float
    contents_seen: float
    base_perplexity: float
    adapter_perplexity: float | None
    target: str
    lookup_cr: float
    n_gram_cr: float
    ss_cr: float | None
    too_templated: bool | None


def seen_share(held_out: Sequence[str], training: Iterable[str]) -> float:
    """Share of ``held_out`` that occurs verbatim in ``training``."""
    known = set(training)
    return sum(text in known for text in held_out) / len(held_out)


def too_templated(n_gram_cr: float, ss_cr: float | None) -> bool | None:
    """Whether the n-gram comes within 25% of Speculative Streaming; ``None``: not measured."""
    return None if ss_cr is None else n_gram_cr > NEAR * ss_cr


def call_reduction(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], draft: Drafter
) -> float:
    """Tokens of all outputs / target calls that produce them with ``draft``."""
    pairs = zip(prompts, outputs, strict=True)
    calls = sum(target_calls(prompt, output, draft) for prompt, output in pairs)
    return sum(len(output) for output in outputs) / calls


def best_of_ss(values: dict[str, Any]) -> dict[str, float]:
    """The best CR of Speculative Streaming by task, from the object that ``speedup`` writes."""
    best: dict[str, float] = {}
    for row in values["rows"]:
        if row["method"].startswith("SS"):
            best[row["task"]] = max(row["call_reduction"], best.get(row["task"], 0.0))
    return best


def read_speedup(file: Path | None, results: Path = RESULTS) -> SpeedupFile | None:
    """Read ``file``, or the newest ``speedup-*.json`` of this text generator in ``results``.

    Raises:
        UserError: ``file`` is not such a file, or was made with another text generator.
    """
    newest_first = sorted(
        results.glob("speedup-*.json"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in [file] if file else newest_first:
        try:
            values = json.loads(path.read_text())
            made_by, best = values["facts"]["generator"], best_of_ss(values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a file of benchmarks.speedup: {error!r}") from None
        if made_by == generator().generator_hash():
            return SpeedupFile(path.name, best)
        if file:
            raise UserError(
                f"{file} was measured on text generator {made_by}, "
                f"expected {generator().generator_hash()}"
            )
    return None


def log_likelihood(model: nn.Module, prompt: Sequence[int], target: Sequence[int]) -> float:
    """Sum of the target tokens' log-probabilities behind ``prompt``, in one forward pass."""
    logits = model(mx.array([*prompt, *target[:-1]])[None])[0, len(prompt) - 1 :]
    logits = logits.astype(mx.float32)
    picked = mx.take_along_axis(logits, mx.array(target)[:, None], axis=-1)[:, 0]
    return (picked - mx.logsumexp(logits, axis=-1)).sum().item()


def perplexity(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    description: str,
) -> float:
    """Per token of all targets, each behind its prompt."""
    total = 0.0
    pairs = list(zip(prompts, targets, strict=True))
    for prompt, target in track(pairs, description):
        total += log_likelihood(model, prompt, target)
    return math.exp(-total / sum(len(target) for target in targets))


def n_gram_of(training: Sequence["Item"], tokenizer: TokenizerWrapper, description: str) -> Drafter:
    """The back-off 5-gram of the training targets.

    Each target stands between the tokens that open an answer and the end token, so that the
    n-gram knows how answers begin and end.
    """
    opening = chat_prompt(tokenizer, "")
    sequences = [
        [*opening, *target_tokens(tokenizer, item)] for item in track(training, description)
    ]
    return n_gram(sequences, DRAFT_LENGTH)


def target_tokens(tokenizer: TokenizerWrapper, item: "Item") -> list[int]:
    """Token ids of an item's target and the end token."""
    return [*tokenizer.encode(item.target, add_special_tokens=False), tokenizer.eos_token_id]


def measure(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    task: str,
    adapter: Path | None,
    streams: Path | None,
    counts: dict[str, int],
    speedup: SpeedupFile | None,
) -> Row:
    """Everything about one task.

    Args:
        model: the base; adapters come and go.
        tokenizer: the base's.
        task: its name.
        adapter: the task's adapter directory, if there is one.
        streams: the base's lossless streams, which only make its greedy output faster.
        counts: ``items``, ``overlap_items`` (no fewer), ``training_items``, ``max_tokens``.
        speedup: what Speculative Streaming reached.
    """
    rng = random.Random(f"task-text-{task}")
    training = [
        generator().sample(rng, "train", task)
        for _ in track(range(counts["training_items"]), f"{task}: training text")
    ]
    for_overlap = generator().held_out(task, counts["overlap_items"])
    held_out = for_overlap[: counts["items"]]
    prompts = [text.prompt for text in held_out_texts(tokenizer, task, counts["items"])]
    targets = [target_tokens(tokenizer, item) for item in held_out]
    model.swap_adapter(None)
    base_perplexity = perplexity(model.model, prompts, targets, f"{task}: perplexity, base")
    adapter_perplexity = None
    model.swap_adapter(adapter or streams)
    if adapter:
        description = f"{task}: perplexity, adapter"
        adapter_perplexity = perplexity(model.model, prompts, targets, description)
    mounted = Mounted(model, model.model, tokenizer, counts["max_tokens"])
    greedy = mounted.ours(LIKELY_DRAFTS)
    outputs = [greedy(prompt).tokens for prompt in track(prompts, f"{task}: greedy output")]
    draft = n_gram_of(training, tokenizer, f"{task}: 5-gram")
    n_gram_cr = call_reduction(prompts, outputs, draft)
    ss_cr = speedup.best.get(task) if speedup else None
    return Row(
        task=task,
        targets_seen=seen_share([i.target for i in for_overlap], (i.target for i in training)),
        contents_seen=seen_share([i.content for i in for_overlap], (i.content for i in training)),
        base_perplexity=base_perplexity,
        adapter_perplexity=adapter_perplexity,
        target="adapter" if adapter else "base",
        lookup_cr=call_reduction(prompts, outputs, prompt_lookup(DRAFT_LENGTH)),
        n_gram_cr=n_gram_cr,
        ss_cr=ss_cr,
        too_templated=too_templated(n_gram_cr, ss_cr),
    )


COLUMNS = {
    "task": "{task}",
    "targets seen": "{targets_seen:.2%}",
    "contents seen": "{contents_seen:.2%}",
    "perplexity, base": "{base_perplexity:.3f}",
    "perplexity, adapter": "{adapter}",
    "target": "{target}",
    "CR, prompt lookup": "{lookup_cr:.2f}",
    "CR, 5-gram": "{n_gram_cr:.2f}",
    "CR, SS": "{ss}",
    "too templated": "{flag}",
}


def markdown(rows: list[Row], facts: dict[str, Any]) -> list[str]:
    """The lines of the report."""
    shown = [
        vars(row)
        | {
            "adapter": "-" if row.adapter_perplexity is None else f"{row.adapter_perplexity:.3f}",
            "ss": "-" if row.ss_cr is None else f"{row.ss_cr:.2f}",
            "flag": {None: "-", False: "no", True: "**yes**"}[row.too_templated],
        }
        for row in rows
    ]
    seen = [row.task for row in rows if row.targets_seen >= MOST_SEEN]
    return [
        f"{measured_on(facts)}; text generator {facts['generator']}; model {facts['model']}.",
        "",
        f"Seen: of {facts['overlap_items']:,} held-out items a task, among "
        f"{facts['training_items']:,} training items of that task. Perplexity and CR: "
        f"{facts['items']} held-out items a task. CR: drafts of {DRAFT_LENGTH} tokens on the "
        "target's own greedy output; SS: the best of any tree, "
        f"from {facts['speedup'] or 'no file'}.",
        "",
        *table(COLUMNS, shown),
        "",
        f"Tasks with {MOST_SEEN:.0%} of their targets seen, or more: {', '.join(seen) or 'none'}.",
    ]


def adapter_directories(model: Path | None, adapters: Path | None) -> dict[str, Path]:
    """Adapter directories by task: those in ``adapters``, else the bundled base's own.

    Raises:
        UserError: there is no adapter in ``adapters``.
    """
    if adapters is None:
        names = bundled.adapter_names() if model is None else []
        return {name: bundled.adapter_path(name) for name in names}
    found = {path.parent.name: path.parent for path in adapters.glob("*/adapter_config.json")}
    if not found:
        raise UserError(f"{adapters} has no */adapter_config.json, expected one a task")
    return found


@one_line_errors
def main(
    items: Annotated[int, typer.Option(help="Held-out items the model reads.", min=1)] = 50,
    overlap_items: Annotated[
        int, typer.Option(help="Held-out items looked for in the training text.", min=1)
    ] = 2_000,
    training_items: Annotated[int, typer.Option(help="Training items per task.", min=1)] = 20_000,
    only: Tasks = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens per item at most.", min=2)] = 160,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another model than the bundled base.")
    ] = None,
    adapters: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its adapters, a directory per task.")
    ] = None,
    speedup: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file of benchmarks.speedup; the newest."),
    ] = None,
    output: Output = RESULTS,
) -> None:
    """Report on the generated task text: overlap, perplexity, and drafting without a network."""
    counts = {
        "items": items,
        "overlap_items": max(overlap_items, items),
        "training_items": training_items,
        "max_tokens": max_tokens,
    }
    chosen = chosen_tasks(only)
    by_task = adapter_directories(model, adapters)
    measured = read_speedup(speedup)
    base, tokenizer = load(model or bundled.base_path())
    streams = None if model else bundled.streams_path()
    rows = [
        measure(base, tokenizer, task, by_task.get(task), streams, counts, measured)
        for task in chosen
    ]
    facts = device.describe() | counts
    facts |= {
        "generator": generator().generator_hash(),
        "model": str(model or "bundled"),
        "speedup": measured and measured.name,
    }
    summary = {"facts": facts, "rows": [asdict(row) for row in rows]}
    print(write_report(output, "task-text", summary, markdown(rows, facts)))


if __name__ == "__main__":
    typer.run(main)
