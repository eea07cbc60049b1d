"""Quantize the demonstration base and train its streams and adapters.

    python -m specstream_mlx.convert.demo_model.train_adapters --base runs/base/model \\
        --work runs/adapters --bits 8 base streams proofread sql summarize describe

Each named part is made in turn and skipped where it is finished, so the same command resumes:
``base`` quantizes the base; ``streams`` trains the lossless streams on the greedy output of the
quantized base; a task's name trains that task's shared-mode adapter. PyTorch trains on the
quantized values, expanded to float32, since they are the target that the streams must predict.
"""

import json
import os
import random
from pathlib import Path
from typing import Annotated

import mlx.core as mx
import torch
import typer
from mlx_lm.utils import dequantize_model, load, load_model, quantize_model, save
from rich.console import Console
from rich.progress import track
from transformers import AutoTokenizer, LlamaForCausalLM

from ..settings import TrainSettings
from ..trainer import train
from . import tasks

GROUP_SIZE = 64


def quantize_base(base: Path, work: Path, bits: int) -> None:
    """Write ``work/base`` (MLX, quantized) and ``work/expanded`` (the same values in float32)."""
    model, tokenizer, config = load(str(base), return_config=True)
    model.set_dtype(mx.float32)
    model, quantized_config = quantize_model(model, config, GROUP_SIZE, bits)
    model.set_dtype(mx.float16)
    save(work / "base", base, model, tokenizer, quantized_config)
    model, _ = load_model(work / "base")
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    save(work / "expanded", base, model, tokenizer, config)


@torch.no_grad()
def greedy_outputs(
    model: LlamaForCausalLM, tokenizer, prompts: list[str], batch_size: int = 128
) -> list[str]:
    """The model's greedy completion of each user turn, in the order of ``prompts``."""
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        for prompt in prompts
    ]
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    outputs = [""] * len(texts)
    tokenizer.padding_side = "left"
    for start in track(range(0, len(order), batch_size), "greedy output"):
        chosen = order[start : start + batch_size]
        batch = tokenizer(
            [texts[index] for index in chosen],
            padding=True,
            return_tensors="pt",
            add_special_tokens=False,
            return_token_type_ids=False,
        )
        generated = model.generate(**batch, max_new_tokens=120, do_sample=False)
        decoded = tokenizer.batch_decode(
            generated[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for index, text in zip(chosen, decoded, strict=True):
            outputs[index] = text
    return outputs


def write_data(path: Path, prompts: list[str], completions: list[str]) -> None:
    """JSONL in mlx_lm's completion format; empty completions are left out."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        for prompt, completion in zip(prompts, completions, strict=True):
            if completion:
                print(json.dumps({"prompt": prompt, "completion": completion}), file=file)
    os.replace(partial, path)


def stream_data(work: Path, count: int, seed: int) -> Path:
    """Greedy output of the quantized base on training prompts of all tasks."""
    path = work / "streams.jsonl"
    if not path.exists():
        tokenizer = AutoTokenizer.from_pretrained(work / "expanded")
        model = LlamaForCausalLM.from_pretrained(work / "expanded", dtype=torch.float32)
        rng = random.Random(f"streams-{seed}")
        names = list(tasks.TASKS)
        prompts = [
            tasks.instructed(tasks.sample(rng, "train", names[index % len(names)]))
            for index in range(count)
        ]
        write_data(path, prompts, greedy_outputs(model, tokenizer, prompts))
    return path


def task_data(work: Path, task: str, count: int, seed: int) -> Path:
    """Training items of one task, content and target."""
    path = work / f"{task}.jsonl"
    if not path.exists():
        rng = random.Random(f"{task}-{seed}")
        items = [tasks.sample(rng, "train", task) for _ in range(count)]
        write_data(path, [item.content for item in items], [item.target for item in items])
    return path


def settings_of(part: str, work: Path, minutes: float, items: int, seed: int) -> TrainSettings:
    """How ``part`` is trained."""
    common = {
        "model": work / "expanded",
        "output": work / part,
        "num_streams": 4,
        "num_msa_layers": 4,
        "batch_size": 32,
        "time_limit": minutes,
        "seed": seed,
        "resume": (work / part / "checkpoint.pt").exists(),
    }
    if part == "streams":
        return TrainSettings(
            data=stream_data(work, items, seed),
            mode="lossless",
            stream_mlp="base+adapter",
            learning_rate=1e-2,
            **common,
        )
    return TrainSettings(
        data=task_data(work, part, items, seed),
        mode="shared",
        prompt_template=tasks.prompt_template(part),
        lora_rank=8,
        alpha_streams=0.3,
        learning_rate=3e-3,
        **common,
    )


def main(
    parts: Annotated[list[str], typer.Argument(help="base, streams, and names of tasks.")],
    base: Annotated[Path, typer.Option(help="Hugging Face directory of the base.")],
    work: Annotated[Path, typer.Option(help="Where everything is written.")],
    bits: Annotated[int, typer.Option(help="Of the quantized base.")] = 8,
    minutes: Annotated[float, typer.Option(help="Wall time for each adapter.")] = 20.0,
    items: Annotated[int, typer.Option(help="Training items for each adapter.")] = 12_000,
    seed: Annotated[int, typer.Option(help="Of the text and the new weights.")] = 0,
) -> None:
    """Quantize the base and train streams and adapters (resumable)."""
    work.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    for part in parts:
        if part == "base":
            if not (work / "expanded" / "config.json").exists():
                quantize_base(base, work, bits)
        elif part == "streams" or part in tasks.TASKS:
            if not (work / part / "adapter").exists():
                train(settings_of(part, work, minutes, items, seed))
        else:
            known = ", ".join(tasks.TASKS)
            console.print(f"error: unknown part {part!r}, expected base, streams, {known}")
            raise typer.Exit(2)
        console.print(f"{part}: done")


if __name__ == "__main__":
    typer.run(main)
