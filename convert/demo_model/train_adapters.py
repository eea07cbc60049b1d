"""Quantize the demonstration base and train its streams and adapters.

    python -m specstream_mlx.convert.demo_model.train_adapters --base runs/base/model \\
        --work runs/adapters base streams shared proofread sql summarize describe

The named parts are made one after the other, and those that are finished are skipped, so the same
command resumes. ``base`` quantizes the base. ``streams`` trains the lossless streams, with a head
that knows the token before, on the greedy output of the quantized base; ``plain-streams`` the same
with a plain head, to compare with. ``shared`` trains one shared-mode adapter on all tasks, which is
not shipped: the tasks' adapters start from it. A task's name trains that task's shared-mode adapter
on items without instruction, which the adapter holds. ``heads`` gives the streams of all finished
tasks heads that know the token before, trained on what the adapters write. All text comes from the
mixture, and parts end after a number of steps, so a run that is stopped for a while loses nothing.
PyTorch trains on the quantized values, expanded to float32: the streams must predict their output.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Annotated

import mlx.core as mx
import typer
from mlx_lm import batch_generate
from mlx_lm.utils import dequantize_model, load, quantize_model, save
from rich.console import Console

from specstream_mlx import demonstration
from specstream_mlx.adapters.description import describe
from specstream_mlx.batch import batch_generate as generate_with_streams
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track
from specstream_mlx.config import Mode, UserError
from specstream_mlx.loading import load as load_for_decoding
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.staging import staged_directory, staged_file
from specstream_mlx.train.stream_settings import SHAPE

from ..pytorch.trainer import train
from ..pytorch.training_settings import TrainSettings
from . import mixture, tasks
from .typed_dev import typed_dev, typed_prompts
from .work_directory import LOSSLESS, PLAIN_STREAMS, converted, head_of

GROUP_SIZE = 64
AT_ONCE, TOGETHER = 512, 64
"""Texts between two steps of a progress bar, and those that are written together."""
STEPS = dict.fromkeys(LOSSLESS, 1000) | {"shared": 600, "proofread": 400}
TASK_STEPS = 200
HEAD_STEPS = 150
SAVE_STEPS = 50
"""Steps between two checkpoints."""
HEAD_ITEMS = 600
"""Texts that an adapter writes for the training of its head."""
SEED_RANK, HEAD_RANK = 256, 192
"""Of the lossless streams, which may take 1.5 MB."""
LORA_RANK, TASK_SEED_RANK, TASK_HEAD_RANK = 4, 64, 64
"""Of an adapter, which may take 3 MB."""
MLP_ADAPTER_RANK = 8
DRAFT_VOCABULARY = 12_288
"""A quarter of the tokens: one call of the whole head is a fifth of the base's plain step."""
MOST_TOKENS = 384
"""Tokens of a training item; a batch of longer ones takes too much memory."""
EMBEDDING_RATE = 0.1  # high, as embeddings are added to hidden states of size 20 (RMS)


def write_base(base: Path, target: Path, bits: int | None) -> None:
    """Write a base in MLX format.

    Args:
        base: Hugging Face directory.
        target: directory for the result.
        bits: bits per weight; ``None``: not quantized. The rest is in float16.
    """
    model, tokenizer, config = load(str(base), return_config=True)
    model.set_dtype(mx.float32)
    written_config = config
    if bits is not None:
        model, written_config = quantize_model(model, config, GROUP_SIZE, bits)
    model.set_dtype(mx.float16)
    with staged_directory(target) as scratch:
        save(scratch, base, model, tokenizer, written_config)


def quantize_base(base: Path | None, work: Path, bits: int) -> None:
    """Quantize a base: ``work/base`` in MLX format, ``work/expanded`` with its values in float32.

    Args:
        base: Hugging Face directory; ``None``: the bundled base as it is.
        work: directory for both.
        bits: bits per weight of the quantized base.
    """
    if base is None:
        base = demonstration.base_path()
        with staged_directory(work / "base") as scratch:
            shutil.copytree(base, scratch, dirs_exist_ok=True)
    else:
        write_base(base, work / "base", bits)
    model, tokenizer, config = load(str(work / "base"), return_config=True)
    model.set_dtype(mx.float32)  # expanding rounds to the dtype of the scales
    model = dequantize_model(model)
    plain = {name: value for name, value in config.items() if "quantization" not in name}
    with staged_directory(work / "expanded") as scratch:
        save(scratch, base, model, tokenizer, plain)


def greedy_outputs(
    base: Path, prompts: list[str], max_tokens: int = 200, adapter: Path | None = None
) -> list[str]:
    """Complete prompts greedily.

    Args:
        base: directory of a base in MLX format.
        prompts: user turns.
        max_tokens: most tokens of a completion.
        adapter: directory of an adapter in MLX format, whose streams then run beside the text.

    Returns:
        The completions, in the order of ``prompts``.
    """
    speculative, tokenizer = load_for_decoding(base, adapter_path=adapter)
    ids = [chat_prompt(tokenizer, prompt, speculative.prompt_template) for prompt in prompts]
    outputs = []
    for start in track(range(0, len(ids), AT_ONCE), "greedy output"):
        group = ids[start : start + AT_ONCE]
        options = {"max_tokens": max_tokens, "completion_batch_size": TOGETHER}
        if adapter is None:
            batch = batch_generate(speculative.model, tokenizer, group, **options)
        else:
            batch = generate_with_streams(
                speculative, tokenizer, group, speculation=False, **options
            )
        outputs += batch.texts
    return outputs


def write_data(path: Path, prompts: list[str], completions: list[str]) -> None:
    """Write JSONL in mlx_lm's completion format, leaving out empty completions."""
    with staged_file(path) as partial, partial.open("w") as file:
        for prompt, completion in zip(prompts, completions, strict=True):
            if completion:
                print(json.dumps({"prompt": prompt, "completion": completion}), file=file)


def answers(path: Path, base: Path, prompts: list[str]) -> Path:
    """Write a base's greedy answers to prompts.

    Returns:
        The file, which is kept if it is there already.
    """
    if not path.exists():
        write_data(path, prompts, greedy_outputs(base, prompts))
    return path


def mixed_prompts(count: int, seed: str) -> list[tasks.Item]:
    """Draw ``count`` training items, of all tasks in turn."""
    rng, names = random.Random(seed), list(tasks.TASKS)
    return [mixture.draw(rng, names[index % len(names)]) for index in range(count)]


def stream_data(work: Path, count: int, seed: int) -> Path:
    """Write what the lossless streams train on: prompts of all tasks and the base's greedy output.

    Returns:
        The file, which is kept if it is there already.
    """
    path = work / "streams.jsonl"
    if not path.exists():
        prompts = [tasks.instructed(item) for item in mixed_prompts(count, f"streams-{seed}")]
        write_data(path, prompts, greedy_outputs(work / "base", prompts))
    return path


def typed_outputs(work: Path) -> Path:
    """Write the base's greedy output for typed texts of each task.

    Returns:
        The file, which is kept if it is there already.
    """
    return answers(work / "streams-typed.jsonl", work / "base", typed_prompts())


def shared_data(work: Path, count: int, seed: int) -> Path:
    """Write what the shared adapter trains on: items of all tasks, with their instructions.

    Returns:
        The file, which is kept if it is there already.
    """
    path = work / "shared.jsonl"
    if not path.exists():
        items = mixed_prompts(count, f"shared-{seed}")
        write_data(path, [tasks.instructed(i) for i in items], [i.target for i in items])
    return path


def task_data(work: Path, task: str, count: int, seed: int) -> Path:
    """Write what a task's adapter trains on: items of the task, without its instruction.

    Returns:
        The file, which is kept if it is there already.
    """
    path = work / f"{task}.jsonl"
    if not path.exists():
        rng = random.Random(f"{task}-{seed}")
        items = [mixture.draw(rng, task) for _ in range(count)]
        write_data(path, [item.content for item in items], [item.target for item in items])
    return path


def typed_data(work: Path, names: list[str], count: int) -> Path:
    """Write what people typed for development, in the form of the training items.

    Args:
        work: directory for the file.
        names: tasks; items of several tasks have their instructions.
        count: items of each task, with the first of their accepted answers.

    Returns:
        The file, which is kept if it is there already.
    """
    together = len(names) > 1
    path = work / f"{'shared' if together else names[0]}-typed.jsonl"
    if not path.exists():
        items = [answers[0] for name in names for answers in typed_dev(name, count)]
        prompts = [tasks.instructed(item) if together else item.content for item in items]
        write_data(path, prompts, [item.target for item in items])
    return path


def shared_adapter(work: Path) -> Path | None:
    """The directory of the adapter of all tasks, ``None`` if it has not been trained."""
    path = work / "shared" / "adapter"
    return path if path.exists() else None


def settings_of(
    part: str,
    work: Path,
    minutes: float | None,
    iters: int | None,
    items: int,
    seed: int,
    msa_layers: dict[Mode, int],
    start: Path | None,
) -> TrainSettings:
    """The settings with which a part is trained; its data is written if it is missing.

    Args:
        part: a part of ``LOSSLESS``, ``shared`` or the name of a task.
        work: the work directory.
        minutes: wall time after which the run ends; ``None``: any.
        iters: steps after which it ends; ``None``: any, and ``minutes`` is given.
        items: training items of a task's adapter.
        seed: seed of text and new weights.
        msa_layers: N_s by mode.
        start: adapter directory that the run starts from; ``None``: new weights.
    """
    common = {
        "model": work / "expanded",
        "output": work / part,
        "num_streams": 4,
        "stream_init": "linear",
        "num_msa_layers": msa_layers["lossless" if part in LOSSLESS else "shared"],
        "batch_size": 8,
        "max_seq_length": MOST_TOKENS,
        "stream_mlp": "adapter",
        "stream_adapter_rank": MLP_ADAPTER_RANK,
        "stream_head": "conditioned",
        "draft_vocabulary": DRAFT_VOCABULARY,
        "time_limit": minutes,
        "iters": iters,
        "seed": seed,
        "save_every": SAVE_STEPS,
        "resume": (work / part / "checkpoint.pt").exists(),
        "init_adapter": start,
        "embedding_learning_rate": EMBEDDING_RATE,
    }
    if part in LOSSLESS:
        return TrainSettings(
            data=stream_data(work, items * 2 // 3, seed),
            valid_data=typed_outputs(work),
            mode="lossless",
            stream_init_rank=SEED_RANK,
            stream_mlp="adapter",
            stream_adapter_rank=MLP_ADAPTER_RANK,
            learning_rate=2e-3 if start else 4e-3,
            stream_head="plain" if part == PLAIN_STREAMS else "conditioned",
            **common,
        )
    if part == "shared":
        data, template = shared_data(work, 2 * items, seed), None
        valid_data = typed_data(work, list(tasks.TASKS), 12)
    else:
        data, template = task_data(work, part, items, seed), tasks.prompt_template(part)
        valid_data = typed_data(work, [part], 32)
    return TrainSettings(
        data=data,
        valid_data=valid_data,
        mode="shared",
        lora_rank=LORA_RANK,
        prompt_template=template,
        stream_init_rank=TASK_SEED_RANK,
        stream_head_rank=TASK_HEAD_RANK,
        learning_rate=1e-3,
        stream_learning_rate=2e-3,
        # What a proofread text needs most is an exact main stream.
        alpha_streams=0.15 if part == "proofread" else 0.4,
        **common,
    )


def head_data(work: Path, part: str, count: int, seed: int) -> Path:
    """Write what the head of a task's adapter trains on: texts that the adapter itself writes.

    Returns:
        The file, which is kept if it is there already.
    """
    path = work / f"{part}-written.jsonl"
    if not path.exists():
        data = task_data(work, part, count, seed).read_text().splitlines()
        prompts = [json.loads(line)["prompt"] for line in data[:HEAD_ITEMS]]
        adapter = converted(work, part)
        write_data(path, prompts, greedy_outputs(work / "base", prompts, adapter=adapter))
    return path


def head_settings(
    work: Path, part: str, rank: int, iters: int, items: int, seed: int
) -> TrainSettings:
    """The settings with which a head is trained on the frozen streams of a finished adapter.

    Args:
        work: the work directory.
        part: the name of a task.
        rank: of the head.
        iters: steps.
        items: training items of a task's adapter.
        seed: seed of text and new weights.
    """
    adapter, output = work / part / "adapter", work / head_of(part)
    config = describe(adapter).stream_config
    return TrainSettings(
        model=work / "expanded",
        data=head_data(work, part, items, seed),
        output=output,
        init_adapter=adapter,
        train="head",
        stream_head="conditioned",
        stream_head_rank=rank,
        learning_rate=5e-3,
        batch_size=16,
        max_seq_length=MOST_TOKENS,
        iters=iters,
        seed=seed,
        save_every=SAVE_STEPS,
        resume=(output / "checkpoint.pt").exists(),
        prompt_template=config.prompt_template,
        lora_rank=LORA_RANK,
        **{name: getattr(config, name) for name in ("mode", *SHAPE)},
    )


@one_line_errors
def main(
    parts: Annotated[
        list[str],
        typer.Argument(
            help=f"Parts to make: base, {', '.join(LOSSLESS)}, shared, names of tasks, heads."
        ),
    ],
    work: Annotated[Path, typer.Option(help="Directory that everything is written to.")],
    base: Annotated[
        Path | None,
        typer.Option(help="Hugging Face directory of the base. Default: the bundled one."),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits per weight of the quantized base.")] = 8,
    minutes: Annotated[
        float | None, typer.Option(help="Wall time for each part, instead of its steps.")
    ] = None,
    iters: Annotated[
        int | None,
        typer.Option(
            help="Steps for each part. Default: streams 1000, shared 600, proofread 400, any other "
            "task 200, each head 150."
        ),
    ] = None,
    lossless_msa_layers: Annotated[
        int, typer.Option(help="Top layers with streams (N_s) of the lossless streams.")
    ] = 6,
    shared_msa_layers: Annotated[
        int, typer.Option(help="Top layers with streams (N_s) of the shared-mode adapters.")
    ] = 4,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Adapter that the parts start from. Default: for tasks the part shared, if it is "
            "there."
        ),
    ] = None,
    head_rank: Annotated[int, typer.Option(help="Rank of the heads.")] = 64,
    items: Annotated[int, typer.Option(help="Training items of a task's adapter.")] = 12_000,
    seed: Annotated[int, typer.Option(help="Seed of the text and of the new weights.")] = 0,
) -> None:
    """Quantize the base and train streams and adapters (resumable)."""
    work.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    msa_layers: dict[Mode, int] = {"lossless": lossless_msa_layers, "shared": shared_msa_layers}
    for part in parts:
        if part == "base":
            if not (work / "expanded" / "config.json").exists():
                quantize_base(base, work, bits)
        elif part == "heads":
            for name in tasks.TASKS:
                finished = (work / name / "adapter").exists()
                if finished and not (work / head_of(name) / "adapter").exists():
                    train(head_settings(work, name, head_rank, iters or HEAD_STEPS, items, seed))
        elif part in (*LOSSLESS, "shared") or part in tasks.TASKS:
            if not (work / part / "adapter").exists():
                steps = iters or (None if minutes else STEPS.get(part, TASK_STEPS))
                start_of_part = start or (shared_adapter(work) if part in tasks.TASKS else None)
                train(
                    settings_of(part, work, minutes, steps, items, seed, msa_layers, start_of_part)
                )
        else:
            known = ", ".join(tasks.TASKS)
            raise UserError(
                f"unknown part {part!r}, expected base, {', '.join(LOSSLESS)}, shared, heads, "
                f"{known}"
            )
        console.print(f"{part}: done")


if __name__ == "__main__":
    typer.run(main)
