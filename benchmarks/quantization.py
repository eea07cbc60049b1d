"""Speculative Streaming on quantized weights, in the shape of Table 4 of arXiv 2402.11131.

The base is expanded to 16 bits and quantized anew: of a base that is quantized already, the row "16
bit" has the same values. Streams and adapters were trained on the base's own values and are used as
they are with every variant. Rows are compared with ``mlx_lm`` on the same weights in the same form
(and the same LoRA), item by item in turn; ``CR`` = tokens per target call; ``of 16 bit`` = CR over
that of the 16-bit row. ``MB stored`` counts the base's weights, ``MB in use`` is MLX's peak while
the items are decoded. Which form the weights are held in is the machine's choice (see
``hardware.weights``).
"""

import gc
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, save
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.recipes import MSA_RECIPES, RECIPES, Quantization

from specstream_mlx import UserError, bundled, demonstration
from specstream_mlx.adapters.description import describe
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.loading import model_directory, read_config, read_model, read_tokenizer
from specstream_mlx.options import PATH, TEXT, integer, most_tokens, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, Base, interleaved
from .speedup import Subject
from .texts import WRITERS, Texts, adapter_of, chosen_tasks, names_in, score, writer_of

WHOLE = "16 bit"
VARIANTS = (WHOLE, "int8", "int4", "int4, groups of 32", "msa_4_8")


def check_variants(names: str, subject: Subject) -> list[str]:
    """The variants between semicolons, or those of ``VARIANTS`` that the subject allows.

    Raises:
        UserError: one of them is none, or spares the layers of streams that are not there.
    """
    known = list(dict.fromkeys((*VARIANTS, *RECIPES)))
    chosen = names_in(names, known, "variant", between=";") if names else []
    streams = subject.each_bundled or msa_layers(subject.adapter) is not None
    if not streams and (spared := set(chosen) & set(MSA_RECIPES)):
        raise UserError(
            f"{min(spared)} spares the layers in which streams run, and none are mounted: expected "
            "--adapter-path, or other --variants"
        )
    return chosen or [name for name in VARIANTS if streams or name not in MSA_RECIPES]


def expand_base(source: Path, target: Path) -> None:
    """Write a base with its weights in 16 bits: bfloat16 where it has that, else float16."""
    model, config = read_model(source)
    model = dequantize_model(model)
    dtypes = {tensor.dtype for tensor in dict(tree_flatten(model.parameters())).values()}
    model.set_dtype(mx.bfloat16 if mx.bfloat16 in dtypes else mx.float16)
    config = {name: value for name, value in config.items() if "quantization" not in name}
    save(target, source, model, read_tokenizer(source, config), config)


def msa_layers(adapter: Path | None) -> int | None:
    """N_s of an adapter's streams; ``None`` where there are none."""
    config = None if adapter is None else describe(adapter).stream_config
    return None if config is None else config.num_msa_layers


def make_variant(expanded: Path, name: str, num_msa_layers: int | None, target: Path) -> Path:
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
        quantization = Quantization(int(name[3]), 32 if name.endswith("32") else 64)
    else:
        layers = num_msa_layers if name in MSA_RECIPES else None
        quantization = Quantization(recipe=name, num_msa_layers=layers)
    convert_base(expanded, target, quantization)
    return target


def stored_bytes(directory: Path) -> int:
    """Of the model's weights."""
    return sum(file.stat().st_size for file in directory.glob("model*.safetensors"))


def measure(
    base: Base, variant: str, adapter: Path | None, task: str, texts: Texts
) -> dict[str, Any]:
    """The row of one task on one variant: mlx_lm and drafting on the same texts, in turn."""
    mounted = base.mount(adapter)
    # Without streams only lookup drafts, which the rule decides about.
    drafts = LIKELY_DRAFTS if mounted.model.streams else None
    items = texts.of_task(mounted.model, mounted.tokenizer, task)
    ways = {MLX_LM: mounted.mlx_lm(), "SS": mounted.ours(drafts)}
    mx.reset_peak_memory()
    found = interleaved([text.prompt for text in items], ways)
    peak = mx.get_peak_memory()
    plain, ours = (found.figures(name, MLX_LM) for name in ways)
    row = {
        "variant": variant,
        "task": task,
        "writer": writer_of(mounted.model),
        "held": mounted.model.held and mounted.model.held.form,
        "stored_bytes": stored_bytes(mounted.model.path),
        "peak_bytes": peak,
        "plain_tps": plain["decode_tps"],
        "tps": ours["decode_tps"],
        "speedup": ours["speedup"],
        "call_reduction": ours["call_reduction"],
        "same_output": found.same("SS", found.first_runs(MLX_LM)),
        "items": len(items),
    }
    if texts.own:
        return row
    (metric, plain_quality), (_, quality) = (
        score(task, [run.text for run in found.first_runs(name)], [text.answers for text in items])
        for name in ways
    )
    qualities = {"plain_quality": round(plain_quality, 3), "quality": round(quality, 3)}
    return row | {"metric": metric} | qualities


def share_of_whole(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """CR over that of the same task and writer on 16 bits; ``None`` where that was not measured."""
    wanted = WHOLE, row["task"], row["writer"]
    for other in rows:
        if (other["variant"], other["task"], other["writer"]) == wanted:
            return row["call_reduction"] / other["call_reduction"]
    return None


COLUMNS = {
    "task, writer": "{task}, {writer}",
    "weights": "{variant}",
    "held": "{held}",
    "MB stored": "{stored:.1f}",
    "MB in use": "{peak:.0f}",
    "mlx_lm tokens/s": "{plain_tps:.0f}",
    "SS tokens/s": "{tps:.0f}",
    "speedup": "{speedup:.2f}x",
    "CR": "{call_reduction:.2f}",
    "of 16 bit": "{share:.2f}",
}
QUALITY_COLUMNS = {
    "quality, mlx_lm": "{metric} {plain_quality:.2f}",
    "quality, SS": "{quality:.2f}",
}


def markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """The lines of the report."""
    shown = []
    for row in sorted(rows, key=lambda row: (row["task"], row["writer"])):
        sizes = {name: row[f"{name}_bytes"] / 1e6 for name in ("stored", "peak")}
        shown.append({**row, **sizes, "share": share_of_whole(row, rows)})
    about = (
        f"{measured_on(facts)}; model {facts['model']}; {facts['texts']}, {facts['items']} a task."
    )
    scored = all("quality" in row for row in rows)
    return [about, "", *table(COLUMNS | (QUALITY_COLUMNS if scored else {}), shown)]


def compare(
    subject: Subject,
    texts: Texts,
    chosen: Sequence[str],
    variants: Sequence[str],
    max_tokens: int,
    output: Path,
) -> str:
    """Measure all variants; the files ``quantization-MACHINE`` are written at the end.

    Args:
        subject: the model; its bits and random streams do not count.
        texts: that are decoded.
        chosen: tasks, or a name for the user's texts.
        variants: of the base, see ``check_variants``.
        max_tokens: of a text.
        output: the directory of the files.

    Returns:
        the Markdown text.

    Raises:
        UserError: model and adapter do not go together.
    """
    writers = WRITERS if subject.each_bundled else ("",)
    adapters = {
        writer: [adapter_of(task, writer) if writer else subject.adapter for task in chosen]
        for writer in writers
    }
    layers = {writer: msa_layers(mounted[0]) for writer, mounted in adapters.items()}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        expanded = Path(name) / "expanded"
        expand_base(subject.directory, expanded)
        pairs = [(variant, writer) for variant in variants for writer in writers]
        for number, (variant, writer) in enumerate(track(pairs, "quantization")):
            made = make_variant(expanded, variant, layers[writer], Path(name) / f"{number}")
            form = "expanded" if variant == WHOLE else subject.weights
            base = Base(made, max_tokens, form, fastest_baseline=False)
            for task, adapter in zip(chosen, adapters[writer], strict=True):
                rows.append(measure(base, variant, adapter, task, texts))
            del base
            if made != expanded:
                shutil.rmtree(made)
            gc.collect()
            mx.clear_cache()
    facts = device.describe() | {
        "model": subject.name,
        **texts.facts(),
    }
    file = f"quantization-{machine_suffix(facts)}"
    return write_report(output, file, {"facts": facts, "rows": rows}, markdown(rows, facts))


def main(
    *,
    model: str | None = option(None, TEXT, "The base. Default: smollm2, with what is bundled."),
    adapter_path: Path | None = option(None, PATH, "An adapter of --model."),
    variants: str = option(
        "",
        TEXT,
        "Any of '16 bit', int8, int4, 'int4, groups of 32', and convert's recipes, with semicolons "
        "between them. Default: '16 bit;int8;int4;int4, groups of 32;msa_4_8'.",
    ),
    tasks: str = option("sql,describe,summarize", TEXT, "Whose texts are decoded."),
    items: int = option(16, integer(1), "Texts of each task."),
    max_tokens: int = most_tokens(160, least=2),
    output: Path = OUTPUT,
) -> None:
    """Measure speed, call reduction, quality and memory by the bits of the base's weights."""
    path = model_directory(demonstration.model_path(model))
    subject = Subject(
        path,
        demonstration.NAME if demonstration.is_meant(model) else str(path),
        adapter_path or bundled.streams_for(read_config(path)),
        each_bundled=model is None and adapter_path is None,
    )
    chosen = check_variants(variants, subject)
    texts = Texts("test", items)
    print(compare(subject, texts, chosen_tasks(tasks), chosen, max_tokens, output))


if __name__ == "__main__":
    program(main)()
