"""Sampled text: how often drafts meet the target's draws, and what that brings.

    python -m benchmarks.temperature                         # T = 1, all tasks, both writers
    python -m benchmarks.temperature --temp 0.7 --temp 1.5 --tasks describe,friendly
    python -m benchmarks.temperature --top-k 20

Every text has a seed, and mlx_lm draws with ``keyed_sampler`` of the same seed. The ways:

- ``keyed``: the default; guesses believe the noise as far as the text shows that it helps;
- ``keyed, s alone``: the streams' likeliest tokens, whatever the noise;
- ``keyed, s and noise``: what the noise would draw from the streams' own distribution;
- ``rejection``: the papers' rule, a chain of drafts that are drawn; for plain heads alone.

All of ``keyed`` write the same text, which ``same text`` counts: in lossless mode mlx_lm's, in
shared mode that of the same model decoding one token a step. Speeds are over ``mlx_lm``'s on the
same text.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specstream_mlx import DraftSettings, demonstration, keyed_sampler
from specstream_mlx.drafting.settings import DRAWN_DRAFTS, LIKELY_DRAFTS
from specstream_mlx.engine.sampling import KeyedSampler
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.engine.verify.rejection import RejectionRule
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.options.fields import option
from specstream_mlx.options.generation import most_tokens
from specstream_mlx.options.kinds import POSITIVE, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, Base, Way, expected_runs, interleaved, streams_of
from .texts import ORIGIN, TASKS, WRITERS, Texts, TextSet, adapter_of, chosen_tasks, texts_a_task


class StreamsAlone(KeyedRule):
    """Guesses that know nothing of the noise."""

    strengths = (0.0,)


class StreamsAndNoise(KeyedRule):
    """Guesses as if the streams knew the target's distribution."""

    strengths = (1.0,)


WAYS: dict[str, tuple[type[VerifyRule], DraftSettings]] = {
    "keyed": (KeyedRule, LIKELY_DRAFTS),
    "keyed, s alone": (StreamsAlone, LIKELY_DRAFTS),
    "keyed, s and noise": (StreamsAndNoise, LIKELY_DRAFTS),
    "rejection": (RejectionRule, DRAWN_DRAFTS),
}


def measure(
    base: Base, writer: str, task: str, temp: float, top_k: int, texts: Texts
) -> list[dict[str, Any]]:
    """The rows of one task: all ways on its texts, in turn."""

    def sampler_of(prompt: Sequence[int]) -> KeyedSampler:
        return keyed_sampler(sum(prompt), temp, top_k=top_k)

    mounted = base.mount(adapter_of(task, writer))
    prompts = [text.prompt for text in texts.of_task(mounted.model, mounted.tokenizer, task)]
    conditioned = streams_of(mounted.model).config.stream_head == "conditioned"
    own = {name: way for name, way in WAYS.items() if not (conditioned and name == "rejection")}
    ways: dict[str, Way] = {
        MLX_LM: mounted.mlx_lm(sampler_of),
        **{name: mounted.ours(drafts, sampler_of, rule) for name, (rule, drafts) in own.items()},
    }
    found = interleaved(prompts, ways)
    expected = expected_runs(mounted, prompts, found.first_runs(MLX_LM), sampler_of)
    return [
        {
            **{"writer": writer, "task": task, "temp": temp, "way": name, "items": len(prompts)},
            **found.figures(name, MLX_LM),
            "same": found.same(name, expected) if name != "rejection" else None,
        }
        for name in own
    ]


COLUMNS = {
    "T": "{temp:g}",
    "writer": "{writer}",
    "task": "{task}",
    "rule, drafts": "{way}",
    "CR": "{call_reduction:.2f}",
    "nodes a call": "{nodes:.1f}",
    "tokens/s over mlx_lm": "{speedup:.2f}x",
    "same text": "{same} of {items}",
}


def means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each temperature, writer and way, of all tasks' means."""
    found = []
    for key in dict.fromkeys((row["temp"], row["writer"], row["way"]) for row in rows):
        own = [row for row in rows if (row["temp"], row["writer"], row["way"]) == key]
        values = {
            name: statistics.mean(row[name] for row in own)
            for name in ("call_reduction", "nodes", "speedup")
        }
        items = sum(row["items"] for row in own)
        same = None if own[0]["same"] is None else sum(row["same"] for row in own)
        named = {"temp": key[0], "writer": key[1], "way": key[2], "task": "mean"}
        found.append(named | values | {"items": items, "same": same})
    return found


def markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """The lines of the report."""
    about = (
        f"{measured_on(facts)}; {facts['texts']}, {facts['items']} a task, each with a seed of its "
        f"own, top-k {facts['top_k'] or 'none'}."
    )
    return [about, "", *table(COLUMNS, [*means(rows), *rows])]


def main(
    temp: list[float] | None = option(
        None, POSITIVE, "A temperature above 0; may be given several times."
    ),
    top_k: int = option(0, integer(0), "Tokens that are drawn from; 0: all."),
    only: str = TASKS,
    origin: TextSet = ORIGIN,
    items: int = texts_a_task(4),
    max_tokens: int = most_tokens(96, least=2),
    output: Path = OUTPUT,
) -> None:
    """Measure how drafts fare when text is sampled, on the demonstration model.

    [bold]Example[/bold]

    [cyan]  python -m benchmarks.temperature --temp 0.7 --temp 1.5 --tasks describe,friendly[/cyan]
    """
    base, texts = Base(demonstration.base_path(), max_tokens), Texts(origin, items)
    tasks = chosen_tasks(only)
    cases = [(writer, task, one) for one in temp or [1.0] for writer in WRITERS for task in tasks]
    rows = []
    for writer, task, one in track(cases, "temperature"):
        rows += measure(base, writer, task, one, top_k, texts)
    facts = base.facts() | texts.facts() | {"top_k": top_k}
    file = f"temperature-{f'top-{top_k}-' if top_k else ''}{machine_suffix(facts)}"
    print(write_report(output, file, {"facts": facts, "rows": rows}, markdown(rows, facts)))


if __name__ == "__main__":
    program(main)()
