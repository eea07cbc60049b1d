"""Lossless streams in several shapes, or of several texts, by as many updates of the same size.

    python -m benchmarks.stream_variants --model runs/adapters/expanded \\
        --data convert/demo_model/text/answers/train.jsonl --work runs/shapes --iters 120 \\
        --valid convert/demo_model/text/answers/valid.jsonl \\
        "4 layers" "8 layers:num_msa_layers=8" "400 answers:data=first-400.jsonl"

A variant is a name and, behind a colon, what differs from the demonstration model's streams:
settings of the PyTorch trainer. Where their texts are the same all learn from the same batches. The
same command resumes.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from specstream_mlx.convert.demo_model.train_adapters import STREAMS, MakingOptions, stream_settings
from specstream_mlx.convert.pytorch.load import load_adapter
from specstream_mlx.convert.pytorch.trainer import evaluate, train
from specstream_mlx.convert.pytorch.training_data import read_pairs, tokenize
from specstream_mlx.convert.pytorch.training_run import autocast
from specstream_mlx.convert.pytorch.training_settings import TrainSettings
from transformers import AutoTokenizer

from specstream_mlx import UserError
from specstream_mlx.files import staged_file
from specstream_mlx.hardware import device
from specstream_mlx.options import PATH, TEXTS, each, integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, commit, machine_suffix, measured_on, table, write_report

_FILES = each("a list of files", lambda value: isinstance(value, Path))
COLUMNS = {
    "streams": "{variant}",
    "held-out text": "{text}",
    "right by depth": "{depths}",
    "tokens a chain": "{chain:.2f}",
    "parameters": "{parameters:,}",
    "seconds an update": "{seconds:.1f}",
}


def settings_for(variant: str, common: dict[str, Any]) -> TrainSettings:
    """The settings of a variant."""
    known = {field.name: field.type for field in fields(TrainSettings)}
    own: dict[str, Any] = {}
    for pair in filter(None, variant.partition(":")[2].split(",")):
        name, _, value = pair.partition("=")
        if name not in known:
            raise UserError(f"{variant}: unknown setting {name!r}, expected one of the trainer's")
        own[name] = Path(value) if name == "data" else int(value) if value.isdigit() else value
    return TrainSettings(**common | own)


def scores(settings: TrainSettings, valid: list[Path]) -> list[dict[str, Any]]:
    """How often a trained variant's streams are right on each held-out text."""
    model = load_adapter(settings.model, settings.output / "adapter")
    tokenizer = AutoTokenizer.from_pretrained(settings.model, local_files_only=True)
    rows = []
    for path in valid:
        items = tokenize(read_pairs(path), tokenizer, None, settings.max_seq_length)
        with torch.inference_mode(), autocast(settings, torch.device("cpu")):
            right = evaluate(model, items, settings.batch_size)
        depths = " ".join(f"{share:.3f}".lstrip("0") for share in right["streams"])
        rows.append({"text": path.stem, "depths": depths, "chain": right["chain"]})
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return [row | {"parameters": count} for row in rows]


def one_variant(settings: TrainSettings, valid: list[Path], name: str) -> list[dict[str, Any]]:
    """Train and score a variant, or read the result of an earlier call."""
    result = settings.output / "result.json"
    if not result.exists():
        if not (settings.output / "adapter").exists():
            train(settings)
        log = (settings.output / "log.jsonl").read_text().splitlines()
        last = [json.loads(line) for line in log][-1]
        rows = [
            {"variant": name, "seconds": last["seconds"] / last["step"]} | row
            for row in scores(settings, valid)
        ]
        with staged_file(result) as scratch:
            scratch.write_text(json.dumps(rows))
    rows = json.loads(result.read_text())
    return rows


def main(
    variants: list[str] = option(
        ..., TEXTS, "NAME or NAME:setting=value,..", metavar="VARIANT", positional=True
    ),
    model: Path = option(..., PATH, "Directory of a base that PyTorch reads."),
    data: Path = option(..., PATH, "JSONL of prompts and the base's answers."),
    valid: list[Path] = option(..., _FILES, "The same, held out; may be repeated."),
    work: Path = option(..., PATH, "Directory for the runs."),
    iters: int = option(100, integer(1), "Updates of each variant."),
    seed: int = option(0, integer(0), "Of the new weights and of the order."),
    output: Path = OUTPUT,
) -> None:
    """Train variants of lossless streams by the same number of updates, and compare them."""
    rows = []
    options = MakingOptions(work, data.parent, iters=iters, seed=seed)
    base = stream_settings(STREAMS, options, None)
    for number, variant in enumerate(track(variants, "variants")):
        name = variant.partition(":")[0]
        common = {field.name: getattr(base, field.name) for field in fields(TrainSettings)}
        place = work / f"{number}-{name.replace(' ', '-')}"
        common |= {"model": model, "data": data, "valid_data": None, "output": place}
        common["resume"] = (place / "checkpoint.pt").exists()
        rows += one_variant(settings_for(variant, common), valid, name)
    facts = device.describe()
    about = (
        f"{measured_on(facts)}, {commit()}. Lossless streams from nothing, PyTorch, {iters} "
        "updates of 8 answers of the base."
    )
    name = f"stream-variants-{work.name}-{machine_suffix(facts)}"
    lines = [about, "", *table(COLUMNS, rows)]
    print(write_report(output, name, {"facts": about, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
