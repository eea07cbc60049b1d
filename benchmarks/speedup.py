"""Speed of drafting against plain decoding, on held-out texts of the demonstration tasks.

    python -m benchmarks.speedup                        # the paper's trees on the bundled model
    python -m benchmarks.speedup --items 40 --tasks sql,proofread
    python -m benchmarks.speedup --model DIR --streams DIR          # a model of yours
    python -m benchmarks.speedup --suite hybrid         # streams, prompt lookup, both in one tree
    python -m benchmarks.speedup --suite placement      # where lossless streams run
    python -m benchmarks.speedup --suite rule           # what generate does without options
    python -m benchmarks.speedup --suite rule --bits 4 --name int4

Every text is decoded by every way in turn (batch 1, greedy), in another random order each time, so
a way and mlx_lm always run within seconds of each other; see ``runner``. Lines of the base are
compared with mlx_lm on the base, lines of an adapter with mlx_lm on the base with that adapter's
LoRA. mlx_lm runs on the weights that are fastest for it, unless ``--weights`` or ``--bits`` says
how both hold them. Every text is checked: in lossless mode it must be mlx_lm's, in shared mode
that of one token a step. The JSON file and the Markdown table go to ``benchmarks/results``.

``speedup`` is the median over texts of (decode-only tokens/s) / (mlx_lm's on the same text); ``CR``
is target calls of plain decoding / target calls, which is also the accepted length; ``extra
parameters`` are what a method adds to the base; ``missed`` is the share of calls whose accepted
node had no streams. With MLX's reference BLAS:

    python -c "import mlx.core, runpy; runpy.run_module('benchmarks.speedup', None, '__main__')" \\
        --suite rule --name reference-blas
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import mlx.core as mx
import typer
from mlx.utils import tree_map

from specstream_mlx import DraftSettings, SpeculativeModel, UserError, bundled
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track
from specstream_mlx.hardware import device

from .report import RESULTS, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, Base, Drafts, Mounted, expected_runs, interleaved
from .suites import COLUMNS, SUITES, Suite
from .texts import adapter_of, chosen_tasks, held_out_texts, names_in, score


@dataclass(frozen=True)
class Job:
    """What one comparison is made on.

    Attributes:
        mode: of the streams.
        adapter: the directory that is mounted.
        tasks: whose texts are decoded.
    """

    mode: str
    adapter: Path
    tasks: Sequence[str]

    @property
    def name(self) -> str:
        """The task, or ``all``."""
        return self.tasks[0] if len(self.tasks) == 1 else "all"

    @property
    def adapter_name(self) -> str:
        """Lossless streams leave the base as it is: no adapter, as far as mlx_lm is concerned."""
        return "none" if self.mode == "lossless" else self.adapter.name


def jobs_of(
    suite: Suite, chosen: Sequence[str], modes: Sequence[str], own: Path | None
) -> list[Job]:
    """The jobs of a suite.

    Args:
        suite: the suite.
        chosen: tasks.
        modes: of the streams.
        own: the streams of a model of one's own, which are mounted for every task.
    """
    groups = [list(chosen)] if suite.all_tasks else [[task] for task in chosen]
    return [
        Job(mode, own or adapter_of(group[0], mode), group)
        for group in groups
        for mode in modes
        if own or mode == "lossless" or group[0] in bundled.adapter_names()
    ]


def measure(
    base: Base,
    job: Job,
    suite: Suite,
    items: int,
    rounds: int,
    random_streams: bool,
) -> list[dict[str, Any]]:
    """The rows of one job, mlx_lm's first."""
    mounted = base.mount(job.adapter)
    if random_streams:
        randomize(mounted.model)
    drafts = suite.ways[job.mode]
    texts = [text for task in job.tasks for text in held_out_texts(mounted.tokenizer, task, items)]
    prompts = [text.prompt for text in texts]
    ways = {MLX_LM: mounted.mlx_lm()}
    ways |= {name: mounted.ours(one) for name, one in drafts.items()}
    found = interleaved(prompts, ways, rounds)
    expected = expected_runs(mounted, prompts, found.first_runs(MLX_LM))
    rows = []
    for name in ways:
        row = {
            "task": job.name,
            "mode": job.mode,
            "adapter": job.adapter_name,
            "method": name,
            **found.figures(name, MLX_LM),
            "same_output_as_plain": found.same(name, expected),
            "items": len(texts),
            "extra_parameters": extra_parameters(mounted, name == MLX_LM, drafts.get(name)),
        }
        if len(job.tasks) == 1:
            outputs = [run.text for run in found.first_runs(name)]
            metric, quality = score(job.name, outputs, [text.target for text in texts])
            row |= {"metric": metric, "quality": round(quality, 3)}
        rows.append(row)
    return rows


def extra_parameters(mounted: Mounted, plain: bool, drafts: Drafts) -> int:
    """Parameters that a way to draft, or mlx_lm's plain decoding, needs beside the base's."""
    adapter = mounted.model.adapter
    lora = sum(tensor.size for tensor in adapter.lora.values())
    streams = sum(tensor.size for tensor in adapter.stream_tensors.values())
    if plain:
        return lora
    fixed = isinstance(drafts, DraftSettings)
    without_streams = fixed and (not drafts.speculation or drafts.num_streams == 0)
    if without_streams and mounted.model.mode == "lossless":  # shared text depends on them
        return lora
    return lora + streams


def randomize(model: SpeculativeModel) -> None:
    """Streams as if nobody had trained them."""
    mx.random.seed(0)
    values = tree_map(
        lambda x: 0.02 * mx.random.normal(x.shape, x.dtype), model.streams.parameters()
    )
    model.streams.update(values)
    mx.eval(model.streams.parameters())


def markdown(
    suite: Suite, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[str]:
    """The lines of the report."""
    ratio = facts["packed_over_expanded"]
    times = f", {facts['rounds']} times each" if facts["rounds"] > 1 else ""
    about = (
        f"{measured_on(facts)}; weights {facts['weights']}; mlx_lm on {facts['plain_weights']} "
        f"weights{f' (packed are {ratio:.2f}x as fast for it)' if ratio else ''}; "
        f"{facts['streams']} streams; text generator {facts['generator']}; {facts['items']} "
        f"held-out texts a task{times}, greedy."
    )
    right = sum(row["same_output_as_plain"] for row in rows if row["method"] != MLX_LM)
    decoded = sum(row["items"] for row in rows if row["method"] != MLX_LM)
    lines = [suite.question, "", about, f"{right} of {decoded} texts are those of plain decoding."]
    for sentence in suite.summary(rows):
        lines += ["", sentence]
    return [*lines, "", *table({name: COLUMNS[name] for name in suite.columns}, rows)]


def check_both(model: Path | None, streams: Path | None) -> None:
    """Whether a model of one's own comes with its streams.

    Raises:
        UserError: one was given without the other.
    """
    if (model is None) != (streams is None):
        raise UserError("found one of --model and --streams, expected both or none")


def check_texts(rows: Sequence[Mapping[str, Any]]) -> None:
    """End with exit code 1 where a text is not plain decoding's; on Metal near-ties may differ."""
    for row in rows:
        wrong = row["items"] - row["same_output_as_plain"]
        if wrong and row["method"] != MLX_LM and device.backend() == "cpu":
            typer.echo(
                f"error: {row['task']}, {row['mode']}, {row['method']}: {wrong} of {row['items']} "
                "texts differ from plain decoding, expected none",
                err=True,
            )
            raise typer.Exit(1)


@one_line_errors
def main(
    name: Annotated[
        Literal["speedup", "hybrid", "placement", "rule"],
        typer.Option("--suite", help="What is compared."),
    ] = "speedup",
    items: Annotated[
        int | None, typer.Option(help="Held-out texts of a task; the suite's number.", min=1)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Runs of each text; the suite's number.", min=1)
    ] = None,
    only: Annotated[str, typer.Option("--tasks", help="Comma-separated; all.")] = "",
    modes: Annotated[str, typer.Option(help="lossless, shared, or both; the suite's.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a text at most; the suite's number.", min=2)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="MLX model directory; the bundled one.")
    ] = None,
    streams: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Adapter directory of --model.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="packed or expanded, for both; auto: each as it is fastest.")
    ] = "auto",
    bits: Annotated[
        int | None, typer.Option(help="Quantize the base anew, packed, for both.", min=2, max=8)
    ] = None,
    random_streams: Annotated[
        bool, typer.Option("--random-streams", help="Streams that nobody has trained.")
    ] = False,
    label: Annotated[
        str, typer.Option("--name", help="Of the result files: SUITE-NAME-MACHINE.")
    ] = "",
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Compare ways to draft with each other and with mlx_lm's plain decoding."""
    suite = SUITES[name]
    items, rounds = items or suite.items, rounds or suite.rounds
    max_tokens = max_tokens or suite.max_tokens
    chosen = chosen_tasks(only)
    check_both(model, streams)
    wanted = names_in(modes, list(suite.ways), "mode")
    directory = model or bundled.base_path()
    as_fastest = weights == "auto" and bits is None
    base = Base(directory, max_tokens, weights, bits, fastest_baseline=as_fastest)
    if streams:
        mode = base.mount(streams).model.mode
        if mode not in wanted:
            raise UserError(f"{streams} has {mode} streams, expected {' or '.join(wanted)} ones")
        wanted = [mode]
    facts = base.facts() | {
        "items": items,
        "rounds": rounds,
        "streams": "random" if random_streams else "trained",
    }
    own_name = model.resolve().name if model else ""
    file = "-".join(filter(None, (name, label, machine_suffix(facts), own_name)))
    rows: list[dict[str, Any]] = []
    text = ""
    for job in track(jobs_of(suite, chosen, wanted, streams), name):
        rows += measure(base, job, suite, items, rounds, random_streams)
        values = {"facts": facts, "rows": rows}
        text = write_report(output, file, values, markdown(suite, rows, facts))
    print(text)
    check_texts(rows)


if __name__ == "__main__":
    typer.run(main)
