"""Train the demonstration base model from scratch on the mixture of training text.

    python -m specstream_mlx.convert.demo_model.train_base --output runs/base --minutes 180

The run is resumable: the same command continues from ``<output>/checkpoint.pt``. It uses a CUDA
device where there is one, and larger steps pay there (``--step-tokens 65536``). On a processor
minutes are processor time over threads, so a run that other programs slow down or that is stopped
for a while does as many steps as an undisturbed one. The learning rate is constant after a short
warm-up and falls linearly to zero over the last ``--decay-share`` of the time; a copy of
``<output>/before_decay.pt`` in the checkpoint's place starts again from before that, with more
time. The result is a Hugging Face directory, ``<output>/model``.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.config import UserError
from specstream_mlx.staging import staged_directory, staged_file

from ..pytorch.trainer import is_quick_in_bf16
from . import tasks
from .muon import Muon
from .packing import LONGEST, PackedRows, TrainingRows, encode, pack
from .tokenizer import CONTEXT, save_tokenizer
from .typed_dev import typed_dev

PROMPT_WEIGHT = 0.4
"""Weight of a prompt's tokens in the loss, beside 1 for a target's: there is little English to
learn from, and prompts are English too."""
LATE_PROMPT_WEIGHT, LATE = 0.1, 0.4
"""Their weight from where the learning rate has fallen to this share of its height."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = is_quick_in_bf16(DEVICE)
WRITERS = 1 if DEVICE.type == "cpu" else max(1, (os.cpu_count() or 1) - 1)
"""Processes that make text: beside a processor that trains, one is quick enough."""
WARMUP_STEPS = 60
SAVE_SECONDS = 300
EVALUATE_STEPS = 100


def base_config(vocab_size: int, eos_token_id: int, pad_token_id: int) -> LlamaConfig:
    """The architecture: 12 layers of width 384, 6 query and 2 key-value heads of 64, tied head."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        attn_implementation="sdpa",
    )


def logits_of(
    model: LlamaForCausalLM, tokens: torch.Tensor, document: torch.Tensor
) -> torch.Tensor:
    """The logits (B, T, V) of packed rows, with attention within each item."""
    same = document[:, :, None] == document[:, None, :]
    length = tokens.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
    mask = (same & causal)[:, None]
    hidden = model.model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
    return model.lm_head(hidden)


def weighted_loss(
    model: LlamaForCausalLM,
    tokens: torch.Tensor,
    document: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    """The mean cross entropy of the next token in nats, weighted by ``weight`` (B, T).

    It is 0 where all weights are: no item of a cycle may have found room in short rows.
    """
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=BF16):
        logits = logits_of(model, tokens, document)[:, :-1]
    losses = F.cross_entropy(
        logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    weight = weight[:, 1:].flatten()
    return (losses * weight).sum() / weight.sum().clamp(min=1e-6)


@torch.compiler.set_stance("force_eager")  # lengths are many
@torch.no_grad()
def evaluate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 24
) -> dict[str, dict[str, float]]:
    """Measure the model on ``count`` typed texts of each task.

    Greedy decoding writes the target exactly when the arg-max at every target position, given
    the target's own prefix, is the target's token: one forward pass suffices.

    Returns:
        For each task ``loss``, in nats per target token of the accepted answer that is likeliest,
        and ``exact``, the share of texts for which greedy decoding writes an accepted answer.
    """
    results = {}
    for task in tasks.TASKS:
        loss = exact = length = 0.0
        texts = typed_dev(task, count)
        for answers in texts:
            encoded = [encode(tokenizer, item) for item in answers]
            longest = max(len(ids) for ids, _ in encoded)
            rows = pack([[one] for one in encoded], longest, tokenizer.pad_token_id).to(DEVICE)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=BF16):
                logits = logits_of(model, rows.tokens, rows.document)[:, :-1].float()
            wanted, scored = rows.tokens[:, 1:], rows.target[:, 1:]
            losses = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none") * scored
            likeliest = (losses.sum(1) / scored.sum(1)).argmin()
            loss += losses[likeliest].sum().item()
            length += scored[likeliest].sum().item()
            exact += ((logits.argmax(-1) == wanted) | ~scored).all(1).any().item()
        results[task] = {"loss": round(loss / length, 4), "exact": round(exact / len(texts), 3)}
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


def build(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """The untrained model; its layers are compiled together, once for each length of rows."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        base_config(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    ).to(DEVICE)
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    return model


def seconds() -> float:
    """A clock that other programs do not advance: processor time over threads, or of a GPU's run.

    What a GPU takes is time on the wall, since nothing else runs on it.
    """
    if DEVICE.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    return time.monotonic()


def optimizers_of(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        Muon(matrices, dtype=torch.bfloat16 if BF16 else torch.float32),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
    ]


@dataclass
class Run:
    """A run of training: what a checkpoint holds.

    Attributes:
        model: the model.
        optimizers: of its parameters.
        step: steps done.
        spent: seconds by the clock of ``seconds``.
        tokens: tokens seen, padding apart.
    """

    model: LlamaForCausalLM
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    spent: float = 0.0
    tokens: int = 0

    def save(self, path: Path) -> None:
        """Write a checkpoint, all of it or nothing."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "spent": self.spent,
            "tokens": self.tokens,
        }
        with staged_file(path) as partial:
            torch.save(state, partial)

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint."""
        state = torch.load(path, map_location=DEVICE, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.spent, self.tokens = state["step"], state["spent"], state["tokens"]

    def advance(self, rows: PackedRows, learning_rate: float, prompt_weight: float) -> float:
        """Do one step and return its loss in nats."""
        started = seconds()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        weight = rows.target + prompt_weight * rows.prompt
        loss = weighted_loss(self.model, rows.tokens, rows.document, weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += int((rows.document >= 0).sum())
        value = loss.item()  # waits for a GPU
        self.spent += seconds() - started
        return value


def train(
    output: Path,
    minutes: float,
    step_tokens: int,
    learning_rate: float,
    decay_share: float,
    seed: int,
    weights: dict[str, float] | None = None,
) -> None:
    """Train the base model, or continue to train it, and write ``output/model``.

    Args:
        output: directory for checkpoints, log and model.
        minutes: by the clock of ``seconds``, those of the runs that are continued included.
        step_tokens: tokens of a step, a multiple of the longest row's.
        learning_rate: of both optimizers, once they have warmed up.
        decay_share: share of the time in which the learning rate falls.
        seed: seed of the weights and of the text.
        weights: relative frequency of each task; ``None``: the mixture's.
    """
    if step_tokens < LONGEST or step_tokens % LONGEST:
        raise UserError(f"--step-tokens is {step_tokens}, expected a multiple of {LONGEST}")
    output.mkdir(parents=True, exist_ok=True)
    tokenizer_directory = output / "tokenizer"
    if tokenizer_directory.exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_directory)
    else:
        tokenizer = save_tokenizer(tokenizer_directory, seed)
    model = build(tokenizer, seed)
    run = Run(model, optimizers_of(model))
    checkpoint, before_decay = output / "checkpoint.pt", output / "before_decay.pt"
    if checkpoint.exists():
        run.restore(checkpoint)
    log = (output / "log.jsonl").open("a")
    budget = minutes * 60
    saved, running = time.monotonic(), None
    text = TrainingRows(tokenizer, run.step, step_tokens, seed, weights).in_background(WRITERS)
    while run.spent < budget:
        factor = learning_rate_factor(run.step, run.spent, budget, decay_share)
        decays = factor < 1.0 and run.step > WARMUP_STEPS
        if decays and not before_decay.exists():
            run.save(before_decay)
        late = decays and factor < LATE
        prompt_weight = LATE_PROMPT_WEIGHT if late else PROMPT_WEIGHT
        loss = run.advance(next(text).to(DEVICE), learning_rate * factor, prompt_weight)
        running = loss if running is None else 0.95 * running + 0.05 * loss
        if run.step % 10 == 0:
            line = {
                "step": run.step,
                "minutes": round(run.spent / 60, 2),
                "tokens": run.tokens,
                "loss": round(running, 4),
                "lr": learning_rate * factor,
                "prompt_weight": prompt_weight,
            }
            if run.step % EVALUATE_STEPS == 0:
                line["typed_dev"] = evaluate(model, tokenizer)
            print(json.dumps(line), file=log, flush=True)
        if time.monotonic() - saved > SAVE_SECONDS:
            run.save(checkpoint)
            saved = time.monotonic()
    run.save(checkpoint)
    print(json.dumps({"step": run.step, "typed_dev": evaluate(model, tokenizer, 64)}), file=log)
    with staged_directory(output / "model") as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)


@one_line_errors
def main(
    output: Annotated[
        Path, typer.Option(help="Directory that checkpoints, log and model are written to.")
    ] = Path("runs/base"),
    minutes: Annotated[
        float,
        typer.Option(
            help="Processor time over threads, or time on a GPU, including that of the runs that "
            "are continued."
        ),
    ] = 180.0,
    step_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = 4096,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Muon and AdamW.")] = 3e-3,
    decay_share: Annotated[
        float, typer.Option(help="Share of the time in which the learning rate falls.")
    ] = 0.35,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the text.")] = 0,
    task_weights: Annotated[
        str | None,
        typer.Option(
            help='Relative frequency of each task, as in "proofread=10,sql=3". Default: the '
            "mixture's."
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
    train(output, minutes, step_tokens, learning_rate, decay_share, seed, weights)


if __name__ == "__main__":
    typer.run(main)
