"""Speculative Streaming on quantized weights, in the shape of Table 4 of arXiv 2402.11131.

    python -m benchmarks.quantization                       # 16, 8 and 4 bits of the bundled base
    python -m benchmarks.quantization --variants "int8;int4;msa_4_8" --tasks sql

The bundled base is expanded to 16 bits and quantized anew: the row "16 bit" has the values of
the 8 bits that are shipped, so "int8" is the same model but for rounding, and what a table shows
is what fewer bits cost. Streams and adapters were trained on these values and are used as they are
with every variant. Rows are compared with ``mlx_lm`` on the same weights in the same form (and the
same LoRA), item by item in turn; ``CR`` = tokens per target call; ``of 16 bit`` = CR over that of
the 16-bit row. ``MB stored`` counts the base's weights, ``MB in use`` is MLX's peak while the items
are decoded. Which form the weights are held in is the machine's choice (see ``weight_policy``), or
``--weights``.
"""

import gc
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import typer
from mlx_lm.utils import dequantize_model, save
from rich.console import Console
from rich.progress import Progress
from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.recipes import MSA_RECIPES, RECIPES

from specstream_mlx import SpeculativeModel, UserError, bundled, load
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.loading import read_model, read_tokenizer
from specstream_mlx.prompts import chat_prompt

from .metrics import score
from .result_files import RESULTS, machine_suffix, measured_on, write_results
from .task_names import chosen_tasks
from .timed_runs import call_reduction, run_plain, run_streams

WHOLE = "16 bit"
VARIANTS = (WHOLE, "int8", "int4", "int4, groups of 32", "msa_4_8")
MSA_LAYERS = {"lossless": 6, "shared": 2}


@dataclass(frozen=True)
class Row:
    """One task on one variant of the base, with one adapter.

    Attributes:
        variant: how the base is quantized.
        task: whose held-out items are decoded.
        mode: of the streams; ``lossless``: those of the base, ``shared``: the task's adapter.
        held: the form of the weights in memory.
        stored_bytes: of the base's weights.
        peak_bytes: MLX's peak while decoding.
        plain_tps: decode-only tokens/s of mlx_lm, median.
        tps: the same of Speculative Streaming.
        speedup: median ratio of the two on the same item.
        call_reduction: tokens per target call.
        same_output: items whose tokens are mlx_lm's.
        items: how many there are.
        metric: of the task.
        plain_quality: mlx_lm's text by it.
        quality: ours.
    """

    variant: str
    task: str
    mode: str
    held: str
    stored_bytes: int
    peak_bytes: int
    plain_tps: float
    tps: float
    speedup: float
    call_reduction: float
    same_output: int
    items: int
    metric: str
    plain_quality: float
    quality: float


def check_variants(names: str) -> list[str]:
    """The variants between semicolons, or ``VARIANTS``.

    Raises:
        UserError: one of them is none.
    """
    chosen = [name.strip() for name in names.split(";") if name.strip()] or list(VARIANTS)
    known = dict.fromkeys((*VARIANTS, *RECIPES))
    for name in chosen:
        if name not in known:
            raise UserError(f"unknown variant {name!r}, expected some of {'; '.join(known)}")
    return chosen


def expand_base(target: Path) -> None:
    """Write the bundled base with its weights in 16 bits."""
    source = bundled.base_path()
    model, config = read_model(source)
    model = dequantize_model(model)
    model.set_dtype(mx.float16)
    config = {name: value for name, value in config.items() if "quantization" not in name}
    save(target, source, model, read_tokenizer(source, config), config)


def make_variant(expanded: Path, name: str, num_msa_layers: int, target: Path) -> Path:
    """The directory of one variant of the base.

    Args:
        expanded: from ``expand_base``.
        name: one of ``VARIANTS`` or ``RECIPES``.
        num_msa_layers: N_s, for recipes that spare the MSA layers.
        target: where it is written, if it has to be.
    """
    if name == WHOLE:
        return expanded
    if name.startswith("int"):
        group_size = 32 if name.endswith("32") else 64
        convert_base(expanded, target, bits=int(name[3]), group_size=group_size)
    else:
        layers = num_msa_layers if name in MSA_RECIPES else None
        convert_base(expanded, target, recipe=name, num_msa_layers=layers)
    return target


def stored_bytes(directory: Path) -> int:
    """Of the model's weights."""
    return sum(file.stat().st_size for file in directory.glob("model*.safetensors"))


def measure(
    model: SpeculativeModel,
    tokenizer: Any,
    variant: str,
    task: str,
    items: int,
    max_tokens: int,
    progress: Progress,
) -> Row:
    """Decode held-out items with mlx_lm and with streams, in turn; the first is a warm-up too."""
    held_out = tasks.held_out(task, items)
    prompts = [chat_prompt(tokenizer, tasks.instructed(item)) for item in held_out]
    bar = progress.add_task(f"{variant}: {task}, {model.mode}", total=items)
    plain, ours = [], []
    mx.reset_peak_memory()
    for number, ids in enumerate([prompts[0], *prompts]):
        runs = (
            run_plain(model.model, tokenizer, ids, max_tokens),
            run_streams(model, tokenizer, ids, max_tokens, LIKELY_DRAFTS),
        )
        if number:
            plain.append(runs[0])
            ours.append(runs[1])
            progress.advance(bar)
    references = [item.target for item in held_out]
    metric, plain_quality = score(task, [run.text for run in plain], references)
    pairs = list(zip(plain, ours, strict=True))
    return Row(
        variant=variant,
        task=task,
        mode=model.mode,
        held=model.held.form,
        stored_bytes=stored_bytes(model.path),
        peak_bytes=mx.get_peak_memory(),
        plain_tps=round(statistics.median(run.decode_tps for run in plain), 1),
        tps=round(statistics.median(run.decode_tps for run in ours), 1),
        speedup=round(statistics.median(b.decode_tps / a.decode_tps for a, b in pairs), 3),
        call_reduction=round(call_reduction(ours), 3),
        same_output=sum(a.tokens == b.tokens for a, b in pairs),
        items=items,
        metric=metric,
        plain_quality=round(plain_quality, 3),
        quality=round(score(task, [run.text for run in ours], references)[1], 3),
    )


def share_of_whole(row: Row, rows: list[Row]) -> float | None:
    """CR over that of the same task and mode on 16 bits; ``None`` where that was not measured."""
    for other in rows:
        if (other.variant, other.task, other.mode) == (WHOLE, row.task, row.mode):
            return row.call_reduction / other.call_reduction
    return None


def markdown(rows: list[Row], facts: dict[str, Any]) -> str:
    """The result table."""
    lines = [
        f"{measured_on(facts)}; text generator {facts['generator']}; {facts['items']} held-out "
        "items a task.",
        "",
        "| task, mode | weights | held | MB stored | MB in use | mlx_lm tokens/s | SS tokens/s | "
        "speedup | CR | of 16 bit | quality, mlx_lm | quality, SS |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row.task, row.mode)):
        share = share_of_whole(row, rows)
        lines.append(
            f"| {row.task}, {row.mode} | {row.variant} | {row.held} | "
            f"{row.stored_bytes / 1e6:.1f} | {row.peak_bytes / 1e6:.0f} | {row.plain_tps:.0f} | "
            f"{row.tps:.0f} | {row.speedup:.2f}x | {row.call_reduction:.2f} | "
            f"{'-' if share is None else f'{share:.2f}'} | {row.metric} {row.plain_quality:.2f} | "
            f"{row.quality:.2f} |"
        )
    return "\n".join(lines) + "\n"


@one_line_errors
def main(
    variants: Annotated[
        str, typer.Option(help=f"By semicolons: {'; '.join(VARIANTS)}, and recipes of convert.")
    ] = "",
    only: Annotated[str, typer.Option("--tasks", help="Comma-separated task names.")] = (
        "sql,describe,summarize"
    ),
    items: Annotated[int, typer.Option(help="Held-out items per task.", min=5)] = 16,
    max_tokens: Annotated[int, typer.Option(help="Tokens per item at most.", min=2)] = 160,
    weights: Annotated[str, typer.Option(help="auto, packed or expanded.")] = "auto",
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Measure speed, call reduction, quality and memory by quantization, on the bundled model."""
    rows = []
    chosen, chosen_variants = chosen_tasks(only), check_variants(variants)
    with tempfile.TemporaryDirectory() as name, Progress(console=Console(stderr=True)) as bars:
        scratch = Path(name)
        expand_base(scratch / "expanded")
        for number, variant in enumerate(chosen_variants):
            for mode, msa_layers in MSA_LAYERS.items():
                target = scratch / f"{number}-{mode}"
                base = make_variant(scratch / "expanded", variant, msa_layers, target)
                form = "expanded" if variant == WHOLE else weights
                model, tokenizer = load(base, weights=form)
                for task in chosen:
                    adapter = bundled.streams_path()
                    if mode == "shared":
                        adapter = bundled.adapter_path(task)
                    model.swap_adapter(adapter)
                    rows.append(measure(model, tokenizer, variant, task, items, max_tokens, bars))
                del model
                gc.collect()
                mx.clear_cache()
    facts = device.describe() | {"generator": tasks.generator_hash(), "items": items}
    values = {"facts": facts, "rows": [asdict(row) for row in rows]}
    table = markdown(rows, facts)
    write_results(output, f"quantization-{machine_suffix(facts)}", values, table)


if __name__ == "__main__":
    typer.run(main)
