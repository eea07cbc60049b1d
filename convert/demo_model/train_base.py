"""Train the demonstration base model from scratch on the tasks' text.

    python -m specstream_mlx.convert.demo_model.train_base --output runs/base --minutes 90

The run is resumable: the same command continues from ``<output>/checkpoint.pt``. The learning rate
is constant after a short warm-up and falls linearly to zero over the last ``--decay-share`` of
the time; a copy of ``<output>/before_decay.pt`` in the checkpoint's place starts again from before
that, with more time. The result is a Hugging Face directory, ``<output>/model``.
"""

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.staging import staged_directory, staged_file

from . import tasks
from .tokenizer import save_tokenizer

ROW_TOKENS = 256
PROMPT_WEIGHT = 0.1
WARMUP_STEPS = 60


def base_config(vocab_size: int, eos_token_id: int, pad_token_id: int) -> LlamaConfig:
    """The architecture: 8 layers of width 512, 8 query and 2 key-value heads of 64, tied head."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        attn_implementation="sdpa",
    )


def encode(tokenizer: PreTrainedTokenizerFast, item: tasks.Item) -> tuple[list[int], int]:
    """The token ids of an item with the end token, and how many of them are the prompt's."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": tasks.instructed(item)}],
        add_generation_prompt=True,
        tokenize=False,
    )
    prompt = tokenizer.encode(text, add_special_tokens=False)
    completion = tokenizer.encode(item.target, add_special_tokens=False)
    return [*prompt, *completion, tokenizer.eos_token_id], len(prompt)


@dataclass
class PackedRows:
    """Rows of ``ROW_TOKENS`` tokens that hold several items each.

    Attributes:
        tokens: (B, T) int64.
        document: (B, T) int64, the number of the token's item, -1 for padding; attention stays
            within an item.
        weight: (B, T) float32, the weight of the loss of predicting this token.
    """

    tokens: torch.Tensor
    document: torch.Tensor
    weight: torch.Tensor


def pack(encoded: list[tuple[list[int], int]], rows: int, pad: int) -> PackedRows:
    """Pack items into rows, the longest first, each into the first row that has room.

    Args:
        encoded: items from ``encode``; those that find no room are dropped.
        rows: number of rows.
        pad: id of the padding token.
    """
    tokens = torch.full((rows, ROW_TOKENS), pad)
    document = torch.full((rows, ROW_TOKENS), -1)
    weight = torch.zeros(rows, ROW_TOKENS)
    used = [0] * rows
    for number, (ids, prompt_length) in enumerate(sorted(encoded, key=lambda e: -len(e[0]))):
        row = next((r for r in range(rows) if used[r] + len(ids) <= ROW_TOKENS), None)
        if row is None:
            continue
        start, end = used[row], used[row] + len(ids)
        tokens[row, start:end] = torch.tensor(ids)
        document[row, start:end] = number
        weight[row, start + 1 : start + prompt_length] = PROMPT_WEIGHT
        weight[row, start + prompt_length : end] = 1.0
        used[row] = end
    return PackedRows(tokens, document, weight)


def training_rows(
    tokenizer: PreTrainedTokenizerFast,
    step: int,
    rows: int,
    seed: int,
    weights: dict[str, float] | None = None,
) -> PackedRows:
    """Make the rows of one training step, the same ones for the same arguments.

    Args:
        tokenizer: the model's tokenizer.
        step: number of the step.
        rows: number of rows.
        seed: seed of the run.
        weights: relative frequency of each task; ``None``: the generator's.
    """
    rng = random.Random(f"{seed}-{step}")
    encoded, total = [], 0
    while total < rows * ROW_TOKENS:
        task = rng.choices(list(weights), list(weights.values()))[0] if weights else None
        ids, prompt_length = encode(tokenizer, tasks.sample(rng, "train", task))
        if len(ids) <= ROW_TOKENS:
            encoded.append((ids, prompt_length))
            total += len(ids)
    return pack(encoded, rows, tokenizer.pad_token_id)


def logits_of(
    model: LlamaForCausalLM, tokens: torch.Tensor, document: torch.Tensor
) -> torch.Tensor:
    """The logits (B, T, V) of packed rows, with attention within each item."""
    same = document[:, :, None] == document[:, None, :]
    causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    mask = (same & causal)[:, None]
    hidden = model.model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
    return model.lm_head(hidden)


def weighted_loss(
    model: LlamaForCausalLM, tokens: torch.Tensor, document: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The mean cross entropy of the next token in nats, weighted by ``weight``."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(model, tokens, document)[:, :-1]
    losses = F.cross_entropy(
        logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    weight = weight[:, 1:].flatten()
    return (losses * weight).sum() / weight.sum()


@torch.no_grad()
def evaluate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 24
) -> dict[str, dict[str, float]]:
    """Measure the model on ``count`` held-out items of each task.

    Greedy decoding writes the target exactly when the arg-max at every target position, given
    the target's own prefix, is the target's token: one forward pass suffices.

    Returns:
        For each task ``loss``, in nats per target token, and ``exact``, the share of items whose
        target greedy decoding writes.
    """
    results = {}
    for name in tasks.TASKS:
        encoded = [encode(tokenizer, item) for item in tasks.held_out(name, count)]
        encoded = [e for e in encoded if len(e[0]) <= ROW_TOKENS]
        packed = pack(encoded, len(encoded), tokenizer.pad_token_id)
        with torch.autocast("cpu", torch.bfloat16):
            logits = logits_of(model, packed.tokens, packed.document)[:, :-1].float()
        targets = packed.tokens[:, 1:]
        on_target = packed.weight[:, 1:] == 1.0
        losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        wrong = (logits.argmax(-1) != targets) & on_target
        exact = 0
        for row, documents in enumerate(packed.document[:, 1:]):
            for number in documents.unique():
                if number >= 0:
                    exact += not bool(wrong[row][documents == number].any())
        results[name] = {
            "loss": round((losses * on_target).sum().item() / on_target.sum().item(), 4),
            "exact": round(exact / len(encoded), 3),
        }
    return results


def learning_rate_factor(step: int, spent: float, budget: float, decay_share: float) -> float:
    """The factor of the learning rate: it warms up, stays constant and falls to zero linearly.

    Args:
        step: steps done, which count for the warm-up.
        spent: seconds spent.
        budget: seconds of the whole run.
        decay_share: share of ``budget`` in which the rate falls.
    """
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    left = max(0.0, budget - spent)
    return warm * min(1.0, left / (decay_share * budget))


def _save(path: Path, state: dict) -> None:
    with staged_file(path) as partial:
        torch.save(state, partial)


def train(
    output: Path,
    minutes: float,
    rows: int,
    learning_rate: float,
    decay_share: float,
    seed: int,
    weights: dict[str, float] | None = None,
) -> None:
    """Train the base model, or continue to train it, and write ``output/model``.

    Args:
        output: directory for checkpoints, log and model.
        minutes: wall time, including that of the runs that are continued.
        rows: rows of ``ROW_TOKENS`` tokens in a step.
        learning_rate: of both optimizers, once they have warmed up.
        decay_share: share of the time in which the learning rate falls.
        seed: seed of the weights and of the text.
        weights: relative frequency of each task; ``None``: the generator's.
    """
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    tokenizer_directory = output / "tokenizer"
    if tokenizer_directory.exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_directory)
    else:
        tokenizer = save_tokenizer(tokenizer_directory, seed)
    model = LlamaForCausalLM(
        base_config(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    )
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(
            matrices, lr=learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    step, spent, token_count = 0, 0.0, 0
    checkpoint = output / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        step, spent, token_count = state["step"], state["spent"], state["tokens"]

    def snapshot() -> dict:
        return {
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "step": step,
            "spent": spent,
            "tokens": token_count,
        }

    compiled_loss = torch.compile(weighted_loss, dynamic=False)
    budget = minutes * 60
    started = time.monotonic() - spent
    last_save = time.monotonic()
    before_decay = output / "before_decay.pt"
    log = (output / "log.jsonl").open("a")
    running = 0.0
    while spent < budget:
        packed = training_rows(tokenizer, step, rows, seed, weights)
        factor = learning_rate_factor(step, spent, budget, decay_share)
        if factor < 1.0 and step > WARMUP_STEPS and not before_decay.exists():
            _save(before_decay, snapshot())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * factor
        loss = compiled_loss(model, packed.tokens, packed.document, packed.weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        token_count += int((packed.document >= 0).sum())
        spent = time.monotonic() - started
        running = loss.item() if step == 1 else 0.95 * running + 0.05 * loss.item()
        if step % 10 == 0:
            line = {
                "step": step,
                "minutes": round(spent / 60, 2),
                "tokens": token_count,
                "loss": round(running, 4),
                "lr": learning_rate * factor,
            }
            if step % 100 == 0:
                line["held_out"] = evaluate(model, tokenizer)
            print(json.dumps(line), file=log, flush=True)
        if time.monotonic() - last_save > 300:
            _save(checkpoint, snapshot())
            last_save = time.monotonic()
    _save(checkpoint, snapshot())
    print(json.dumps({"step": step, "held_out": evaluate(model, tokenizer, 100)}), file=log)
    with staged_directory(output / "model") as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)


@one_line_errors
def main(
    output: Annotated[
        Path, typer.Option(help="Directory that checkpoints, log and model are written to.")
    ] = Path("runs/base"),
    minutes: Annotated[
        float, typer.Option(help="Wall time, including that of the runs that are continued.")
    ] = 90.0,
    rows: Annotated[int, typer.Option(help=f"Rows of {ROW_TOKENS} tokens in a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Muon and AdamW.")] = 3e-3,
    decay_share: Annotated[
        float, typer.Option(help="Share of the time in which the learning rate falls.")
    ] = 0.35,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the text.")] = 0,
    task_weights: Annotated[
        str | None,
        typer.Option(
            help='Relative frequency of each task, as in "proofread=10,sql=3". Default: the '
            "generator's."
        ),
    ] = None,
) -> None:
    """Train the demonstration base model from scratch (resumable)."""
    weights = None
    if task_weights:
        weights = {
            name: float(weight)
            for name, weight in (part.split("=") for part in task_weights.split(","))
        }
        if unknown := weights.keys() - tasks.TASKS.keys():
            known = ", ".join(tasks.TASKS)
            named = ", ".join(sorted(unknown))
            raise typer.BadParameter(f"--task-weights names {named}, expected some of {known}")
    train(output, minutes, rows, learning_rate, decay_share, seed, weights)


if __name__ == "__main__":
    typer.run(main)
