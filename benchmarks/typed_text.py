"""Does drafting ever lose? Speed on texts that people typed, which nobody tuned anything to.

    python -m benchmarks.typed_text                          # 8 typed texts a task, 20 of prose
    python -m benchmarks.typed_text --texts dev              # those that may be looked at
    python -m benchmarks.typed_text --texts held-out         # the demonstration's own test items
    python -m benchmarks.typed_text --random-streams         # streams that nobody has trained
    python -m benchmarks.typed_text --bits 4                 # the base in 4 bits, packed

``typed/dev`` and ``typed/test`` hold the same kinds of texts, written by hand without sight of the
demonstration model's training text: inputs for its eight tasks, and beginnings of prose. Drafts are
those of ``generate`` without options. In lossless mode they are compared with mlx_lm on the same
text, in shared mode with the same adapter one token a step; every text is checked to be the same.
Ways take turns, and only tokens behind the first one are timed. The baseline runs twice, as if it
were two ways: what it reads against itself is what this machine's noise comes to. Before all that
the costs of steps are measured, if they are not known.

With MLX's reference BLAS:

    python -c "import mlx.core, runpy; runpy.run_module('benchmarks.typed_text', None, '__main__')"
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any, Literal

import typer
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import demonstration
from specstream_mlx.options.kinds import one_of
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.terminal.errors import one_line_errors
from specstream_mlx.terminal.parsing import parser, part_of_name
from specstream_mlx.terminal.progress import track

from .report import RESULTS, Output, machine_suffix, measured_on, table, write_report
from .runner import (
    MLX_LM,
    ONE_TOKEN,
    Base,
    Compared,
    Mounted,
    expected_runs,
    interleaved,
    measure_costs,
)
from .speedup import check_texts, randomize
from .texts import (
    INSTRUCTIONS,
    MODES,
    TYPED,
    Modes,
    Tasks,
    adapter_of,
    chosen_tasks,
    names_in,
    task_items,
)

PROSE = "prose"
"""The kind of text that belongs to no task."""

OURS, PLAIN, CONTROL = "ours", "one token a step", "the baseline once more"
FAR = 30
"""Tokens from which on a single text's ratio is reported: those of shorter ones are noise."""

COLUMNS = {
    "mode": "{mode}",
    "text": "{kind}",
    "texts": "{items}",
    "speedup": "{speedup:.2f}x",
    "least of one text": "{least_shown}",
    "baseline against itself": "{control:.2f}x",
    "least of it": "{control_least_shown}",
    "tokens a call": "{call_reduction:.2f}",
    "nodes a call": "{nodes:.1f}",
    "tokens": "{tokens}",
}


@dataclass(frozen=True)
class Kind:
    """Texts of one kind, and the adapter that continues them.

    Attributes:
        mode: of the streams.
        name: a task, or ``PROSE``.
        adapter: directory.
        texts: token ids.
    """

    mode: str
    name: str
    adapter: Path
    texts: Sequence[Sequence[int]]


def typed_inputs(texts: str, name: str, count: int) -> list[str]:
    """The first inputs of a set of texts for a task, or of prose."""
    if name == PROSE:
        return (TYPED / texts / "prose.txt").read_text(encoding="utf-8").splitlines()[:count]
    return [text for text, _ in task_items(texts, name, count)]


def prompts_of(tokenizer: TokenizerWrapper, texts: str, name: str, count: int) -> list[list[int]]:
    """The prompts of a task with its instruction, or those of prose as they are."""
    if name == PROSE:
        return [chat_prompt(tokenizer, text, None) for text in typed_inputs(texts, name, count)]
    template = INSTRUCTIONS[name] + "\n{text}"
    return [chat_prompt(tokenizer, text, template) for text in typed_inputs(texts, name, count)]


def measure(mounted: Mounted, kind: Kind, rounds: int) -> dict[str, Any]:
    """The row of one kind of text."""
    measure_costs(mounted, kind.texts)
    lossless = kind.mode == "lossless"
    baseline = MLX_LM if lossless else PLAIN
    plainly = mounted.mlx_lm() if lossless else mounted.ours(ONE_TOKEN)
    ways = {baseline: plainly, CONTROL: plainly, OURS: mounted.ours(None)}
    found = interleaved(kind.texts, ways, rounds)
    plain = found.first_runs(baseline)
    expected = expected_runs(mounted, kind.texts, plain) if lossless else plain
    ratios, control = _ratios(found, OURS, baseline), _ratios(found, CONTROL, baseline)
    long = [number for number, run in enumerate(plain) if len(run.tokens) >= FAR]
    least = min((ratios[number] for number in long), default=None)
    control_least = min((control[number] for number in long), default=None)
    figures = found.figures(OURS, baseline)
    return {
        "mode": kind.mode,
        "kind": kind.name,
        "task": kind.name,
        "method": OURS,
        "items": len(kind.texts),
        "tokens": sum(len(run.tokens) for run in plain),
        "speedup": geometric_mean(list(ratios.values())),
        "ratios": {number: round(ratio, 3) for number, ratio in ratios.items()},
        "least": least,
        "least_shown": _shown(least),
        "control": geometric_mean(list(control.values())),
        "control_least": control_least,
        "control_least_shown": _shown(control_least),
        "call_reduction": figures["call_reduction"],
        "nodes": figures["nodes"],
        "same_output_as_plain": found.same(OURS, expected),
    }


def _ratios(found: Compared[str], name: str, baseline: str) -> dict[int, float]:
    """A way's rate over the baseline's, text by text."""
    return {
        number: rate / found.rates[baseline, number]
        for (way, number), rate in found.rates.items()
        if way == name and (baseline, number) in found.rates
    }


def _shown(ratio: float | None) -> str:
    return f"none of {FAR} tokens" if ratio is None else f"{ratio:.2f}x"


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each mode: the mean over kinds, the least kind, the least long text."""
    found = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        own = [row for row in rows if row["mode"] == mode]
        for name, some in (
            ("tasks", [row for row in own if row["kind"] != PROSE]),
            (PROSE, [row for row in own if row["kind"] == PROSE]),
        ):
            if not some:
                continue
            kind = min(some, key=lambda row: row["speedup"])
            far = [row for row in some if row["least"] is not None]
            sentence = (
                f"{mode.capitalize()}, {name}: {geometric_mean([r['speedup'] for r in some]):.2f}x "
                f"in the geometric mean"
            )
            if len(some) > 1:
                sentence += f", {kind['kind']} least with {kind['speedup']:.2f}x"
            if far:
                least, control = (
                    min(row[key] for row in far) for key in ("least", "control_least")
                )
                sentence += f", no text of {FAR} tokens or more below {least:.2f}x"
                sentence += f" (the baseline against itself: {control:.2f}x)"
            found.append(sentence + ".")
    return found


def markdown(rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> list[str]:
    """The lines of the report."""
    about = (
        f"{measured_on(facts)}; weights {facts['weights']}; {facts['streams']} streams; texts: "
        f"{facts['texts']}, {facts['rounds']} times each, greedy, at most {facts['max_tokens']} "
        "tokens; lossless against mlx_lm, shared against the same adapter one token a step."
    )
    right = sum(row["same_output_as_plain"] for row in rows)
    lines = [about, "", f"{right} of {sum(row['items'] for row in rows)} texts are the same."]
    lines += ["", *(f"- {sentence}" for sentence in summary(rows)), ""]
    return lines + table(COLUMNS, rows)


@one_line_errors
def main(
    texts: Annotated[
        Literal["test", "dev", "held-out"], typer.Option(help="Which texts are decoded.")
    ] = "test",
    items: Annotated[int, typer.Option(help="Texts of a task.", min=1)] = 8,
    prose: Annotated[int, typer.Option(help="Beginnings of prose.", min=0)] = 20,
    rounds: Annotated[int, typer.Option(help="Runs of each text.", min=1)] = 5,
    only: Tasks = "",
    modes: Modes = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens of a text at most.", min=2)] = 64,
    bits: Annotated[
        int | None,
        typer.Option(
            parser=parser(one_of(2, 3, 4, 6, 8)), help="Quantize the base anew, packed, for both."
        ),
    ] = None,
    random_streams: Annotated[
        bool, typer.Option("--random-streams", help="Streams that nobody has trained.")
    ] = False,
    label: Annotated[
        str, typer.Option("--name", parser=part_of_name, help="Part of the result files' name.")
    ] = "",
    output: Output = RESULTS,
) -> None:
    """Compare drafting with plain decoding on texts that people typed."""
    chosen, wanted = chosen_tasks(only), names_in(modes, MODES, "mode")
    base = Base(demonstration.base_path(), max_tokens, bits=bits, fastest_baseline=bits is None)
    facts = base.facts() | {
        "texts": texts,
        "rounds": rounds,
        "max_tokens": max_tokens,
        "streams": "random" if random_streams else "trained",
    }
    kinds = [
        Kind(mode, name, adapter_of(name, mode), prompts_of(base.tokenizer, texts, name, items))
        for mode in wanted
        for name in chosen
    ]
    if prose and texts != "held-out":
        prompts = prompts_of(base.tokenizer, texts, PROSE, prose)
        adapter = "friendly" if "friendly" in chosen else chosen[0]
        kinds += [Kind(mode, PROSE, adapter_of(adapter, mode), prompts) for mode in wanted]
    rows: list[dict[str, Any]] = []
    file = "-".join(filter(None, ("typed-text", texts, label, machine_suffix(facts))))
    text = ""
    for kind in track(kinds, "typed text"):
        mounted = base.mount(kind.adapter)
        if random_streams:
            randomize(mounted.model)
        rows.append(measure(mounted, kind, rounds))
        text = write_report(output, file, {"facts": facts, "rows": rows}, markdown(rows, facts))
    print(text)
    check_texts(rows)


if __name__ == "__main__":
    typer.run(main)
