"""Speed of Speculative Streaming against plain decoding, on held-out items of each task.

    python -m benchmarks.speedup                    # the bundled model
    python -m benchmarks.speedup --items 40 --tasks sql,proofread
    python -m benchmarks.speedup --model DIR --streams DIR     # a model of yours

Every item is decoded by every method in turn (batch 1, greedy), so a method and its plain
baseline always run within seconds of each other. Rows of the base are compared with mlx_lm on the
base, rows of an adapter with mlx_lm on the base with that adapter's LoRA mounted. The Markdown
table and the JSON file go to ``benchmarks/results``.

Columns: ``speedup`` = median over items of (decode-only tokens/s) / (mlx_lm's on the same item);
``CR`` = target calls of plain decoding / target calls, which is also the accepted length;
``extra parameters`` = what the method adds to the base. ``likely drafts`` leaves out what is less
likely than the threshold of ``LIKELY_DRAFTS``; with a tree, that is how ``generate`` drafts. On the
CPU backend mlx_lm runs on the packed weights or on the expanded ones, whichever is faster for it,
and the table says which.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import mlx.core as mx
import mlx.nn as nn
import typer
from mlx_lm import load as load_plain
from rich.console import Console
from rich.progress import Progress
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import DraftSettings, SpeculativeModel, UserError, bundled, load
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.prompts import chat_prompt

from .metrics import score
from .result_files import RESULTS, machine_suffix, measured_on, write_results
from .task_names import chosen_tasks
from .timed_runs import TimedRun, call_reduction, run_plain, run_streams

CHAIN = DraftSettings(tree_width=1, tree_size=None)
TREE = DraftSettings(tree_width=4, tree_size=8)
PRUNED = DraftSettings(tree_width=4, tree_size=14, max_nodes=7)
LIKELY_CHAIN = replace(CHAIN, draft_threshold=LIKELY_DRAFTS.draft_threshold)


@dataclass
class Row:
    """One method on one task."""

    task: str
    adapter: str
    method: str
    extra_parameters: int
    runs: list[TimedRun] = field(default_factory=list)
    speedups: list[float] = field(default_factory=list)
    identical: int = 0
    metric: str = ""
    quality: float = 0.0

    @property
    def call_reduction(self) -> float:
        """Tokens, each a call of plain decoding, per target call."""
        return call_reduction(self.runs)

    def summary(self) -> dict:
        """The row of the JSON file."""
        speedup = statistics.median(self.speedups)
        return {
            "task": self.task,
            "adapter": self.adapter,
            "method": self.method,
            "speedup": round(speedup, 3),
            "call_reduction": round(self.call_reduction, 3),
            "accepted_length": round(self.call_reduction, 3),
            "speedup_over_cr": round(speedup / self.call_reduction, 3),
            "decode_tps": round(statistics.median(run.decode_tps for run in self.runs), 1),
            "same_output_as_plain": self.identical,
            "items": len(self.runs),
            "metric": self.metric,
            "quality": round(self.quality, 3),
            "extra_parameters": self.extra_parameters,
        }


Method = Callable[[list[int]], TimedRun]


def packed_model(base: Path, adapter: Path | None) -> nn.Module:
    """``base`` in mlx_lm, its weights packed, with the LoRA of ``adapter``.

    In the dtype that is fast here: the CPU is slow in the half precision of the file.
    """
    model = load_plain(str(base), adapter_path=adapter and str(adapter))[0]
    model.set_dtype(device.fast_dtype(mx.float16))
    return model


def packed_over_expanded(base: Path, expanded: nn.Module, tokenizer, max_tokens: int) -> float:
    """Rate of ``mlx_lm`` on the packed weights over that on the expanded ones, median of five."""
    packed = packed_model(base, None)
    prompts = [chat_prompt(tokenizer, tasks.instructed(i)) for i in tasks.held_out("sql", 6)]
    ratios = []
    for ids in prompts:
        rates = [
            run_plain(model, tokenizer, ids, max_tokens).decode_tps for model in (packed, expanded)
        ]
        ratios.append(rates[0] / rates[1])
    return statistics.median(ratios[1:])


def methods_of(
    model: SpeculativeModel, plain: nn.Module, tokenizer, max_tokens: int
) -> dict[str, Method]:
    """The methods of one mounted adapter; the first is the baseline, ``mlx_lm`` on ``plain``."""
    settings = {"empty tree": DraftSettings(speculation=False)}
    if model.mode == "lossless":
        for name, base in (("chain", CHAIN), ("tree", TREE), ("tree, pruned", PRUNED)):
            settings[f"SS lossless, {name}"] = replace(base, deferred=False)
        settings["SS lossless, chain, deferred"] = CHAIN
        settings["SS lossless, tree, deferred"] = TREE
        settings["SS lossless, likely drafts, deferred"] = LIKELY_DRAFTS
    else:
        settings |= {
            "SS shared, chain": CHAIN,
            "SS shared, tree": TREE,
            "SS shared, tree, pruned": PRUNED,
            "SS shared, chain, likely drafts": LIKELY_CHAIN,
            "SS shared, tree, likely drafts": LIKELY_DRAFTS,
        }
    methods: dict[str, Method] = {
        "mlx_lm": lambda ids: run_plain(plain, tokenizer, ids, max_tokens)
    }
    for name, chosen in settings.items():
        methods[name] = lambda ids, chosen=chosen: run_streams(
            model, tokenizer, ids, max_tokens, chosen
        )
    return methods


def extra_parameters(model: SpeculativeModel, method: str) -> int:
    """Parameters that ``method`` needs beside the base's."""
    lora = sum(t.size for t in model.adapter.lora.values()) if model.adapter else 0
    streams = sum(t.size for t in model.adapter.stream_tensors.values()) if model.adapter else 0
    return lora + (streams if method.startswith("SS") or model.mode == "shared" else 0)


def measure(
    model: SpeculativeModel,
    plain: nn.Module,
    tokenizer,
    task: str,
    adapter: str,
    items: list[tasks.Item],
    max_tokens: int,
    progress: Progress,
) -> list[Row]:
    """Run every method on every item of ``task``, interleaved."""
    methods = methods_of(model, plain, tokenizer, max_tokens)
    rows = {name: Row(task, adapter, name, extra_parameters(model, name)) for name in methods}
    rows["mlx_lm"].extra_parameters = extra_parameters(model, "mlx_lm")
    bar = progress.add_task(f"{task} ({adapter})", total=len(items))
    template = tasks.prompt_template(task)
    prompts = [chat_prompt(tokenizer, item.content, template) for item in items]
    for method in methods.values():
        method(prompts[0])
    for ids in prompts:
        baseline = None
        for name, method in methods.items():
            run = method(ids)
            baseline = baseline or run
            rows[name].runs.append(run)
            rows[name].speedups.append(run.decode_tps / baseline.decode_tps)
            rows[name].identical += run.tokens == baseline.tokens
        progress.advance(bar)
    for row in rows.values():
        row.metric, row.quality = score(
            task, [run.text for run in row.runs], [item.target for item in items]
        )
    return list(rows.values())


def markdown(rows: list[Row], facts: dict) -> str:
    """The result table."""
    lines = [
        f"{measured_on(facts)}; mlx_lm on {facts['plain_weights']} weights (packed are "
        f"{facts['packed_over_expanded']:.2f}x as fast as expanded for it); text generator "
        f"{facts['generator']}; {facts['items']} held-out items a task.",
        "",
        "| task | adapter | method | speedup | CR | speedup / CR | tokens/s | quality | extra "
        "parameters |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        s = row.summary()
        lines.append(
            f"| {s['task']} | {s['adapter']} | {s['method']} | {s['speedup']:.2f}x | "
            f"{s['call_reduction']:.2f} | {s['speedup_over_cr']:.2f} | {s['decode_tps']:.0f} | "
            f"{s['metric']} {s['quality']:.2f} | {s['extra_parameters']:,} |"
        )
    return "\n".join(lines) + "\n"


def check_both(model: Path | None, streams: Path | None) -> None:
    """Whether a model of one's own comes with its streams.

    Raises:
        UserError: one was given without the other.
    """
    if (model is None) != (streams is None):
        raise UserError("found one of --model and --streams, expected both or none")


@one_line_errors
def main(
    items: Annotated[int, typer.Option(help="Held-out items per task.", min=5)] = 20,
    only: Annotated[str, typer.Option("--tasks", help="Comma-separated task names.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens per item at most.", min=2)] = 160,
    model_path: Annotated[
        Path | None, typer.Option("--model", help="MLX model directory; the bundled one.")
    ] = None,
    streams: Annotated[Path | None, typer.Option(help="Adapter directory of --model.")] = None,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Measure wall-clock speedup, call reduction and quality on the bundled model or yours."""
    console = Console(stderr=True)
    on_cpu = device.backend() == "cpu"
    chosen = chosen_tasks(only)
    check_both(model_path, streams)
    base = model_path or bundled.base_path()
    model, tokenizer = load(
        base,
        adapter_path=streams or bundled.streams_path(),
        weights="expanded" if on_cpu else "packed",
    )
    # Lossless streams leave the base as it is: no adapter, as far as mlx_lm is concerned.
    own = "none" if model.mode == "lossless" else (streams or bundled.streams_path()).name
    ratio = packed_over_expanded(base, model.model, tokenizer, max_tokens) if on_cpu else 1.0
    packed = not on_cpu or ratio > 1
    facts = device.describe() | {
        "generator": tasks.generator_hash(),
        "items": items,
        "plain_weights": "packed" if packed else "expanded",
        "packed_over_expanded": round(ratio, 3),
    }
    rows: list[Row] = []
    with Progress(console=console) as progress:
        for task in chosen:
            held_out = tasks.held_out(task, items)
            directories = {own: streams or bundled.streams_path()}
            if streams is None and task in bundled.adapter_names():
                directories[task] = bundled.adapter_path(task)
            for adapter, directory in directories.items():
                model.swap_adapter(directory)
                plain = model.model
                if packed and on_cpu:
                    plain = packed_model(base, None if adapter == "none" else directory)
                rows += measure(
                    model, plain, tokenizer, task, adapter, held_out, max_tokens, progress
                )
    summary = {"facts": facts, "rows": [row.summary() for row in rows]}
    name = f"speedup-{machine_suffix(facts)}" + (f"-{base.resolve().name}" if model_path else "")
    write_results(output, name, summary, markdown(rows, facts))


if __name__ == "__main__":
    typer.run(main)
