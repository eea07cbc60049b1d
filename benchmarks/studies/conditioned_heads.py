"""Do streams that know the token before draft better? The same streams without a head and with one.

    python -m benchmarks.studies.conditioned_heads
    python -m benchmarks.studies.conditioned_heads --plain-streams DIR    # lossless mode, too
    python -m benchmarks.studies.conditioned_heads --texts held-out --timed 0

The heads of the bundled adapters were trained on finished streams, so without it an adapter is what
it was before; ``proofread`` has none. Lossless streams were trained together with theirs, and are
compared with an adapter that was trained as long with a plain head: part ``plain-streams`` of
``train_adapters``.

``chain`` is the accepted length of chains of first guesses, ``depth 1``.. how many calls accepted
so many drafts or more. ``speedup`` is that of ``generate`` over ``mlx_lm`` with the same LoRA,
decode only, and ``streams alone`` the same without prompt lookup; all of them take turns.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specstream_mlx import UserError, bundled, demonstration
from specstream_mlx.adapters.description import describe
from specstream_mlx.adapters.files import read_adapter, write_adapter
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track

from ..adapters_in_turn import alone, drafting_ways
from ..answers import DEPTHS, drafted
from ..report import RESULTS, Output, commit, machine_suffix, measured_on, table, write_report
from ..runner import CHAIN, MLX_LM, Base, Way, interleaved
from ..speedup import check_texts
from ..texts import Tasks, Texts, TextSet, chosen_tasks
from ..typed_text import geometric_mean

HEADS = PLAIN, CONDITIONED = "plain", "conditioned"


def has_head(adapter: Path) -> bool:
    """Whether the streams of an adapter have a conditioned head."""
    return describe(adapter).stream_config.stream_head == CONDITIONED


def without_head(base: Base, adapter: Path, target: Path) -> Path:
    """Write an adapter with plain heads into a new directory, and return that."""
    found = read_adapter(adapter, base.model.model, base.model.config)
    config = replace(found.stream_config, stream_head=PLAIN, stream_head_rank=0)
    tensors = {name: found.stream_tensors[name] for name in config.tensor_shapes()}
    parameters, layers = found.config["lora_parameters"], found.config["num_layers"]
    target.mkdir()
    write_adapter(target, found.lora, parameters, layers, config, tensors)
    return target


def measure(
    base: Base, adapters: Sequence[Path], task: str, texts: Texts, timed: int, rounds: int
) -> list[dict[str, Any]]:
    """The rows of a task with two adapters: without a head and with one."""
    rows = []
    ways: dict[str, Way] = {}
    mode = describe(adapters[0]).stream_config.mode
    for head, adapter in zip(HEADS, adapters, strict=True):
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
    plain_streams: Annotated[
        Path | None, typer.Option(help="Lossless streams with a plain head, to compare as well.")
    ] = None,
    texts: Annotated[TextSet, typer.Option(help="Which texts are decoded.")] = "test",
    items: Annotated[int, typer.Option(help="Texts of a task at most.", min=1)] = 24,
    timed: Annotated[int, typer.Option(help="Texts of a task that are timed.", min=0)] = 8,
    rounds: Annotated[int, typer.Option(help="Runs of each timed text.", min=1)] = 3,
    only: Tasks = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens of a text at most.", min=2)] = 96,
    output: Output = RESULTS,
) -> None:
    """Compare streams without and with a head that knows the token before."""
    chosen = chosen_tasks(only)
    base = Base(demonstration.base_path(), max_tokens)
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
    with tempfile.TemporaryDirectory() as scratch:
        shared = {task: bundled.adapter_path(task) for task in chosen}
        pairs = [
            (task, (without_head(base, adapter, Path(scratch) / task), adapter))
            for task, adapter in shared.items()
            if has_head(adapter)
        ]
        if plain_streams is not None:
            pairs += [(task, (plain_streams, bundled.streams_path())) for task in chosen]
        if not pairs:
            raise UserError(f"--tasks is {only}, whose adapters have plain heads as they are")
        for task, adapters in pairs:
            rows += measure(base, adapters, task, read, timed, rounds)
            lines = [f"{about}.", "", *summary(rows), "", *table(columns, rows)]
            text = write_report(output, name, {"facts": facts, "rows": rows}, lines)
    print(text)
    check_texts(rows)


if __name__ == "__main__":
    typer.run(main)
