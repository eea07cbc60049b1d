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
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import typer
from mlx_lm.utils import dequantize_model, save
from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.recipes import MSA_RECIPES, RECIPES

from specstream_mlx import UserError, bundled
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.loading import read_model, read_tokenizer

from .report import RESULTS, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, Base, interleaved
from .texts import adapter_of, chosen_tasks, held_out_texts, score

WHOLE = "16 bit"
VARIANTS = (WHOLE, "int8", "int4", "int4, groups of 32", "msa_4_8")
MSA_LAYERS = {"lossless": 6, "shared": 2}


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


def measure(base: Base, variant: str, mode: str, task: str, items: int) -> dict[str, Any]:
    """The row of one task on one variant: mlx_lm and streams on held-out texts, in turn."""
    mounted = base.mount(adapter_of(task, mode))
    texts = held_out_texts(mounted.tokenizer, task, items)
    ways = {MLX_LM: mounted.mlx_lm(), "SS": mounted.ours(LIKELY_DRAFTS)}
    mx.reset_peak_memory()
    found = interleaved([text.prompt for text in texts], ways)
    peak = mx.get_peak_memory()
    plain, ours = (found.figures(name, MLX_LM) for name in ways)
    (metric, plain_quality), (_, quality) = (
        score(task, [run.text for run in found.first_runs(name)], [text.target for text in texts])
        for name in ways
    )
    return {
        "variant": variant,
        "task": task,
        "mode": mode,
        "held": mounted.model.held.form,
        "stored_bytes": stored_bytes(mounted.model.path),
        "peak_bytes": peak,
        "plain_tps": plain["decode_tps"],
        "tps": ours["decode_tps"],
        "speedup": ours["speedup"],
        "call_reduction": ours["call_reduction"],
        "same_output": found.same("SS", found.first_runs(MLX_LM)),
        "items": items,
        "metric": metric,
        "plain_quality": round(plain_quality, 3),
        "quality": round(quality, 3),
    }


def share_of_whole(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """CR over that of the same task and mode on 16 bits; ``None`` where that was not measured."""
    for other in rows:
        if (other["variant"], other["task"], other["mode"]) == (WHOLE, row["task"], row["mode"]):
            return row["call_reduction"] / other["call_reduction"]
    return None


COLUMNS = {
    "task, mode": "{task}, {mode}",
    "weights": "{variant}",
    "held": "{held}",
    "MB stored": "{megabytes_stored:.1f}",
    "MB in use": "{megabytes_in_use:.0f}",
    "mlx_lm tokens/s": "{plain_tps:.0f}",
    "SS tokens/s": "{tps:.0f}",
    "speedup": "{speedup:.2f}x",
    "CR": "{call_reduction:.2f}",
    "of 16 bit": "{share}",
    "quality, mlx_lm": "{metric} {plain_quality:.2f}",
    "quality, SS": "{quality:.2f}",
}


def markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """The lines of the report."""
    shown = []
    for row in sorted(rows, key=lambda row: (row["task"], row["mode"])):
        share = share_of_whole(row, rows)
        megabytes = {
            "megabytes_stored": row["stored_bytes"] / 1e6,
            "megabytes_in_use": row["peak_bytes"] / 1e6,
        }
        shown.append({**row, **megabytes, "share": "-" if share is None else f"{share:.2f}"})
    about = (
        f"{measured_on(facts)}; text generator {facts['generator']}; {facts['items']} held-out "
        "items a task."
    )
    return [about, "", *table(COLUMNS, shown)]


@one_line_errors
def main(
    variants: Annotated[
        str, typer.Option(help=f"By semicolons: {'; '.join(VARIANTS)}, and recipes of convert.")
    ] = "",
    only: Annotated[str, typer.Option("--tasks", help="Comma-separated task names.")] = (
        "sql,describe,summarize"
    ),
    items: Annotated[int, typer.Option(help="Held-out items per task.", min=1)] = 16,
    max_tokens: Annotated[int, typer.Option(help="Tokens per item at most.", min=2)] = 160,
    weights: Annotated[str, typer.Option(help="auto, packed or expanded.")] = "auto",
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Measure speed, call reduction, quality and memory by quantization, on the bundled model."""
    rows = []
    chosen, chosen_variants = chosen_tasks(only), check_variants(variants)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        expand_base(scratch / "expanded")
        pairs = [(variant, mode) for variant in chosen_variants for mode in MSA_LAYERS]
        for number, (variant, mode) in enumerate(track(pairs, "quantization")):
            made = make_variant(
                scratch / "expanded", variant, MSA_LAYERS[mode], scratch / f"{number}"
            )
            form = "expanded" if variant == WHOLE else weights
            base = Base(made, max_tokens, form, fastest_baseline=False)
            rows += [measure(base, variant, mode, task, items) for task in chosen]
            del base
            gc.collect()
            mx.clear_cache()
    facts = device.describe() | {"generator": tasks.generator_hash(), "items": items}
    file = f"quantization-{machine_suffix(facts)}"
    print(write_report(output, file, {"facts": facts, "rows": rows}, markdown(rows, facts)))


if __name__ == "__main__":
    typer.run(main)
