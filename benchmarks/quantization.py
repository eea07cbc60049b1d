"""What fewer bits cost, and what drafts bring there: ``specstream-mlx benchmark quantization``.

The model as it comes is compared with itself at fewer bits. These are made of it in memory, by the
code of ``convert --bits`` and ``--quant-predicate``, and no model is written. Streams and adapters
are used as they are. All ways to decode take turns on every text (batch 1, greedy), at the same
bits and with the weights in the same form, and every text is checked, as in ``speedup``.

``MB on disk``: the base's weights as files have them; ``in memory``: as they are held here, which
on a CPU may be expanded. ``perplexity``: per token of the texts as they stand, at most the first
``READ`` tokens of each. ``same tokens``: how many tokens of the texts that the model writes as it
comes are the likeliest at these bits, too, after the same tokens; ``same texts``: how many it
writes alike to the end. ``chain``, ``tree of 8``, ``with lookup``: the accepted length of streams
in these shapes, and of that tree with prompt lookup in it. ``mlx_lm`` and ``drafts``: tokens/s
after the first token, with drafts as ``generate`` makes them; ``speedup`` is the median over texts.
"""

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import dequantize_model
from specstream_mlx.convert.to_mlx.base import RECIPES, Quantization, quantize

from specstream_mlx import SpeculativeModel, load
from specstream_mlx.hardware import device
from specstream_mlx.hardware.weights import hold_weights
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.terminal.progress import progress, track

from .report import machine_suffix, measured_on, table, write_report
from .runner import (
    MLX_LM,
    ONE_TOKEN,
    TREE,
    ByWorth,
    Compared,
    Mounted,
    TimedRun,
    interleaved,
    measure_costs,
    teacher_forced,
)
from .spec_bench import STREAM_SHAPES
from .speedup import RULE_WAY, Subject
from .texts import Texts, names_in, prose

READ = 512  # tokens of a text whose perplexity is measured, at most
_LOOKUP = {"with lookup": replace(TREE, lookup=True)}


def chosen_bits(names: str) -> list[str]:
    """The comma-separated names of ``--bits``, each once."""
    return list(dict.fromkeys(names_in(names, ("8", "4", *RECIPES), "bits")))


def at_bits(directory: Path, bits: str) -> tuple[nn.Module, dict[str, Any]]:
    """A model quantized anew, with its configuration; its weights are read when first used."""
    model, config = read_model(directory, to_run=False)
    if "quantization" in config:
        model = dequantize_model(model)
        config = {name: value for name, value in config.items() if "quantization" not in name}
    asked = Quantization(int(bits)) if bits.isdecimal() else Quantization(recipe=bits)
    quantization = quantize(directory, model, config, asked)["quantization"]
    return model, read_config(directory) | {"quantization": quantization}


def held_model(subject: Subject, weights: nn.Module, config: dict[str, Any]) -> SpeculativeModel:
    """A model of ``at_bits`` in memory, with the subject's adapter."""
    weights, held = hold_weights(weights, subject.weights)
    mx.eval(weights.parameters())
    model = SpeculativeModel(weights, config, subject.directory, held=held)
    model.swap_adapter(subject.adapter)
    return model


@dataclass(frozen=True)
class Material:
    """What is decoded and read at all bits alike."""

    texts: Texts
    tasks: Sequence[str]  # of the texts that are decoded
    rounds: int  # how often each is
    max_tokens: int  # of a text

    def prompts(self, mounted: Mounted) -> list[list[int]]:
        texts = (self.texts.of_task(mounted.model, mounted.tokenizer, task) for task in self.tasks)
        return [text.prompt for some in texts for text in some]

    def perplexity(self, mounted: Mounted) -> float | None:
        """Per token of the user's texts, or of bundled prose; ``None``: they have one token."""
        lines = self.texts.given[: self.texts.count] or prose(self.texts.origin)
        score, count = 0.0, 0
        for line in lines:
            first, *target = mounted.tokenizer.encode(line)[:READ]
            if target:
                score += teacher_forced(mounted.plain, [first], target)[0]
                count += len(target)
        return math.exp(-score / count) if count else None


def measure(
    name: str, mounted: Mounted, material: Material, written: Sequence[TimedRun] | None
) -> tuple[dict[str, Any], Sequence[TimedRun]]:
    """The row of a model, and its plain texts; ``written`` are those of the model as it comes."""
    model, prompts = mounted.model, material.prompts(mounted)
    with progress(f"{name}: timing steps of every shape"):
        measure_costs(mounted, prompts)
    timed = {MLX_LM: mounted.mlx_lm(), RULE_WAY: mounted.ours(ByWorth())}
    shapes = _LOOKUP if model.streams is None else STREAM_SHAPES | _LOOKUP
    counted = {shape: mounted.ours(drafts) for shape, drafts in shapes.items()}
    in_turn = interleaved(prompts, timed, material.rounds)
    untimed = interleaved(prompts, counted, warm_up=False)
    found = Compared(in_turn.runs | untimed.runs, in_turn.rates)
    plain = found.first_runs(MLX_LM)
    is_shared = model.mode == "shared"
    if is_shared:  # the streams take part in the text, which mlx_lm does not run
        plain = [mounted.ours(ONE_TOKEN)(prompt) for prompt in prompts]
    written = written or plain
    ways: list[dict[str, Any]] = [
        {"task": name, "method": way, **found.counts(way, plain)} for way in found.runs
    ]
    pairs = [(prompt, run.tokens) for prompt, run in zip(prompts, written, strict=True)]
    likeliest = [teacher_forced(mounted.plain, *pair)[1] for pair in pairs]
    figures, held = found.figures(RULE_WAY, MLX_LM), model.held
    assert held is not None
    return {
        "bits": name,
        "disk_bytes": held.stored_bytes,
        "memory_bytes": held.held_bytes,
        "held": f"{held.form}, {held.dtype}",
        "perplexity": None if is_shared else material.perplexity(mounted),
        "same_tokens": None if is_shared else sum(likeliest) / sum(len(own) for _, own in pairs),
        "same_texts": sum(a.tokens == b.tokens for a, b in zip(plain, written, strict=True)),
        "items": len(prompts),
        **dict.fromkeys(STREAM_SHAPES),
        **{way["method"]: way["tokens"] / way["calls"] for way in ways},
        "plain_tps": found.figures(MLX_LM, MLX_LM)["decode_tps"],
        "tps": figures["decode_tps"],
        "speedup": figures["speedup"],
        "ways": ways,
    }, written


COLUMNS = {
    "bits": "{bits}",
    "MB on disk": "{disk:.1f}",
    "in memory": "{memory:.1f}",
    "held": "{held}",
    "perplexity": "{perplexity:.2f}",
    "same tokens": "{same_tokens:.1%}",
    "same texts": "{same_texts} of {items}",
    **{shape: f"{{{shape}:.2f}}" for shape in (*STREAM_SHAPES, *_LOOKUP)},
    "mlx_lm tokens/s": "{plain_tps:.1f}",
    "drafts tokens/s": "{tps:.1f}",
    "speedup": "{speedup:.2f}x",
}


def in_words(row: Mapping[str, Any], origin: Mapping[str, Any]) -> str:
    """What the bits of a row cost, and what drafts bring there."""
    shape = next(shape for shape in ("tree of 8", *_LOOKUP) if row[shape] is not None)
    drafts = f"{row['speedup']:.2f} times as fast as mlx_lm, {row[shape]:.2f} tokens a call"
    if row is origin:
        return f"As it comes, drafting is {drafts} ({shape})."
    share = row["disk_bytes"] / origin["disk_bytes"]
    words = [f"{share:.0%} of the bytes on disk"]
    if row["same_tokens"] is not None:
        words.append(f"{row['same_tokens']:.1%} of the tokens stay the same")
    if row["perplexity"] is not None:
        words.append(f"perplexity {row['perplexity']:.2f} instead of {origin['perplexity']:.2f}")
    return (
        f"{row['bits']}: {', '.join(words)}; drafting is {drafts} instead of {origin[shape]:.2f}."
    )


def markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """The lines of the report."""
    bits = facts["origin_bits"]
    said = f"{facts['model']} comes in {bits} bits, with which the other rows are compared."
    if facts["origin_is_quantized"]:
        said = (
            f"{facts['model']} comes in {bits} bits: what these lost of 16 is not known here. The "
            "other rows are made of their values, and compared with them."
        )
    ways = [way for row in rows for way in row["ways"] if way["method"] != MLX_LM]
    right, decoded = (sum(way[key] for way in ways) for key in ("same_output_as_plain", "items"))
    times = f", {facts['rounds']} times each" if facts["rounds"] > 1 else ""
    about = (
        f"{measured_on(facts)}; {facts['texts']}, {facts['items']} a task{times}, greedy; "
        f"perplexity of {facts['read']}."
    )
    lines = ["What do fewer bits cost, and what do drafts bring there?", "", said, ""]
    lines += [f"- {in_words(row, rows[0])}" for row in rows]
    shown = [{**row, **{of: row[f"{of}_bytes"] / 1e6 for of in ("disk", "memory")}} for row in rows]
    same = f"{right} of {decoded} texts are those of plain decoding at the same bits."
    return [*lines, "", about, same, "", *table(COLUMNS, shown)]


def compare(
    subject: Subject, material: Material, bits: Sequence[str], output: Path | None
) -> tuple[str, dict[str, Any]]:
    """Measure a model as it comes and at other bits.

    Returns:
        the Markdown text and what it is made of, which are written to ``output``, if there is one.

    Raises:
        UserError: the model cannot be quantized so, or model and adapter do not go together.
    """
    config = read_config(subject.directory)
    quantization = config.get("quantization")
    form = subject.weights if quantization else "auto"
    model, tokenizer = load(subject.directory, adapter_path=subject.adapter, weights=form)
    assert model.held is not None
    size = quantization["bits"] if quantization else 8 * getattr(mx, model.held.stored_dtype).size
    # Not read yet, but what does not fit is refused before anything is measured.
    waiting = [at_bits(subject.directory, name) for name in bits]
    facts = device.describe() | {
        "model": subject.name,
        "origin_bits": size,
        "origin_is_quantized": quantization is not None,
        **material.texts.facts(),
        "rounds": material.rounds,
        "read": "these texts" if material.texts.given else "prose",
    }
    rows: list[dict[str, Any]] = []
    written: Sequence[TimedRun] | None = None
    for name in track((f"{size} bits, as it comes", *bits), "quantization"):
        if rows:
            del model  # or two of them would be in memory
            gc.collect()
            mx.clear_cache()
            model = held_model(subject, *waiting.pop(0))
        label = f"{name} bits" if name.isdecimal() else name
        mounted = Mounted(model, model.model, tokenizer, material.max_tokens)
        row, written = measure(label, mounted, material, written)
        rows.append(row)
        del mounted
    values = {"facts": facts, "rows": rows}
    lines = markdown(rows, facts)
    if output is None:
        return "\n".join(lines) + "\n", values
    return write_report(output, f"quantization-{machine_suffix(facts)}", values, lines), values
