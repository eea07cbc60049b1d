"""Do streams that know the token before draft better? The same streams without a head and with one.

    python -m benchmarks.studies.conditioned_heads --work runs/adapters
    python -m benchmarks.studies.conditioned_heads --work runs/adapters --texts held-out --timed 0

The work directory is that of ``train_adapters`` after its parts ``heads``, ``streams`` and
``plain-streams``: there ``sql`` has an adapter with plain streams and ``sql-head`` the same one
with a head that was trained behind it; lossless streams were trained from nothing both ways.

``chain`` is the accepted length of chains of first guesses, ``depth 1``.. how many calls accepted
so many drafts or more. ``speedup`` is that of ``generate`` over ``mlx_lm`` with the same LoRA,
decode only, and ``streams alone`` the same without prompt lookup; all of them take turns.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from specstream_mlx.convert.demo_model.work_directory import PLAIN_STREAMS, converted, head_of

from specstream_mlx import UserError
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track

from ..adapters_in_turn import alone, drafting_ways
from ..answers import DEPTHS, drafted
from ..report import RESULTS, Output, commit, machine_suffix, measured_on, table, write_report
from ..runner import CHAIN, MLX_LM, Base, Way, interleaved
from ..speedup import check_texts
from ..texts import MODES, Modes, Tasks, Texts, TextSet, chosen_tasks, names_in
from ..typed_text import geometric_mean

HEADS = "plain", "conditioned"


def adapters_of(work: Path, part: str) -> dict[str, Path]:
    """The converted adapters by head, of a task or of the base.

    Args:
        work: the work directory.
        part: a task, or ``streams``.

    Raises:
        UserError: one has not been trained.
    """
    found = {}
    lossless = part == "streams"
    names = (PLAIN_STREAMS, part) if lossless else (part, head_of(part))
    for head, name in zip(HEADS, names, strict=True):
        source = work / name / "adapter"
        if not source.exists():
            needed = name if lossless else "heads"
            raise UserError(f"{source} is missing, expected the part {needed!r} of train_adapters")
        found[head] = converted(work, name)
    return found


def measure(
    base: Base, work: Path, task: str, mode: str, texts: Texts, timed: int, rounds: int
) -> list[dict[str, Any]]:
    """The rows of a task in a mode: without a head and with one."""
    rows = []
    ways: dict[str, Way] = {}
    for head, adapter in adapters_of(work, "streams" if mode == "lossless" else task).items():
        mounted = base.mount(adapter)
        found = texts.of_task(mounted.model, mounted.tokenizer, task)
        prompts = [text.prompt for text in found]
        chain = mounted.ours(CHAIN)
        runs = [chain(prompt) for prompt in track(prompts, f"{task}, {mode}, {head}")]
        figures = drafted(prompts, runs)
        row = {"task": task, "mode": mode, "head": head, "method": head, "items": len(prompts)}
        row |= {"chain": figures["call_reduction"], "depths": figures["depths"]}
        rows.append(row | {"runs": runs})
        if timed:
            ways |= drafting_ways(mounted, adapter, head, prompts)
            ways.setdefault(MLX_LM, mounted.mlx_lm())
    plain = [run.tokens for run in rows[0].pop("runs")]
    other = [run.tokens for run in rows[1].pop("runs")]
    same = sum(a == b for a, b in zip(plain, other, strict=True))
    for row in rows:
        row["same_output_as_plain"] = same
    if timed:
        compared = interleaved(prompts[:timed], ways, rounds)
        for row in rows:
            row["speedup"] = compared.speedup(row["head"], MLX_LM)
            row["streams_alone"] = compared.speedup(alone(row["head"]), MLX_LM)
    return rows


COLUMNS = {
    "mode": "{mode}",
    "task": "{task}",
    "head": "{head}",
    "chain": "{chain:.2f}",
    **{f"depth {depth + 1}": f"{{depths[{depth}]:.2f}}" for depth in range(DEPTHS)},
}
TIMED_COLUMNS = {"speedup": "{speedup:.2f}x", "streams alone": "{streams_alone:.2f}x"}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each mode: the geometric means with each head."""
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        own = [row for row in rows if row["mode"] == mode]
        means = []
        for key, title in (
            ("chain", "accepted length of a chain"),
            ("speedup", "speedup"),
            ("streams_alone", "by streams alone"),
        ):
            if key in own[0]:
                before, after = (
                    geometric_mean([row[key] for row in own if row["head"] == head])
                    for head in HEADS
                )
                means.append(f"{title} {before:.2f} -> {after:.2f}")
        lines.append(f"- {mode.capitalize()}, geometric means: {', '.join(means)}.")
    return lines


@one_line_errors
def main(
    work: Annotated[Path, typer.Option(help="Work directory of train_adapters.")] = Path(
        "runs/adapters"
    ),
    texts: Annotated[TextSet, typer.Option(help="Which texts are decoded.")] = "test",
    items: Annotated[int, typer.Option(help="Texts of a task at most.", min=1)] = 24,
    timed: Annotated[int, typer.Option(help="Texts of a task that are timed.", min=0)] = 8,
    rounds: Annotated[int, typer.Option(help="Runs of each timed text.", min=1)] = 3,
    only: Tasks = "",
    modes: Modes = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens of a text at most.", min=2)] = 96,
    output: Output = RESULTS,
) -> None:
    """Compare streams without and with a head that knows the token before."""
    chosen, wanted = chosen_tasks(only), names_in(modes, MODES, "mode")
    base = Base(work / "base", max_tokens)
    read = Texts(texts, items)
    facts = base.facts() | {"commit": commit(), "texts": read.facts()["texts"], "timed": timed}
    name = "-".join(("conditioned-heads", texts, machine_suffix(facts)))
    about = (
        f"{measured_on(facts)}; {facts['commit']}; weights {facts['weights']}; {facts['texts']}, "
        f"{items} a task at most, greedy, at most {max_tokens} tokens"
    )
    if timed:
        about += f"; {timed} of each timed {rounds} times"
    columns = COLUMNS | (TIMED_COLUMNS if timed else {})
    rows: list[dict[str, Any]] = []
    text = ""
    for mode in wanted:
        for task in chosen:
            rows += measure(base, work, task, mode, read, timed, rounds)
            lines = [f"{about}.", "", *summary(rows), "", *table(columns, rows)]
            text = write_report(output, name, {"facts": facts, "rows": rows}, lines)
    print(text)
    check_texts(rows)


if __name__ == "__main__":
    typer.run(main)
