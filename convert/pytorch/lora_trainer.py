"""The trainer of LoRA alone, as ``mlx_lm.lora`` and PEFT's users train it.

    python -m specstream_mlx.convert.pytorch.lora_trainer --model BASE --data train.jsonl \\
        --output OUT --epochs 1

Lossless streams can be trained for the result, whose text they leave as it is:

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode lossless --init-adapter OUT/adapter --output STREAMS

It writes ``OUT/adapter`` in PEFT's format, the log ``OUT/log.jsonl`` and the checkpoint
``OUT/checkpoint.pt``, from which ``--resume`` continues.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .required_packages import import_or_exit

if __name__ == "__main__":
    import_or_exit()
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.train.items import Item

from .adapter_files import check_adapter_replaceable, write_lora
from .backbone import Backbone
from .load import load_base, put_lora
from .losses import Batch, head_cross_entropy
from .training_data import collate, load_items
from .training_run import (
    OnStep,
    Trained,
    autocast,
    begin,
    log_held_out,
    run_steps,
    training_device,
)
from .training_settings import LoraSettings


def train_lora(settings: LoraSettings, on_step: OnStep | None = None) -> Path:
    """Train LoRA and write it.

    Args:
        settings: the run's settings.
        on_step: see ``OnStep``.

    Returns:
        The adapter directory, ``settings.output / "adapter"``.

    Raises:
        UserError: a setting is out of range or does not fit the base, a file cannot be read or
            written, or the output holds an earlier run that is not resumed.
    """
    settings.check()
    adapter, device = settings.output / "adapter", training_device()
    check_adapter_replaceable(adapter)
    begin(settings, adapter)
    tuned = put_lora(load_base(settings.model, settings.dtype), settings).to(device)
    weights = {name: p for name, p in tuned.named_parameters() if p.requires_grad}
    base: Any = tuned.get_base_model()
    backbone = Backbone(base)  # products are cast once
    items, held_out = load_items(settings, settings.prompt_template, base.config.vocab_size)

    def loss_of(drawn: Sequence[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        rows, targets = answer_rows(base, batch)
        head = backbone.head
        losses = head_cross_entropy(rows, head.weight, targets, head.bias, backbone.softcap)
        return losses.mean(), {}

    trained = Trained(weights, {settings.learning_rate: list(weights)}, settings.learning_rate)
    step = run_steps(settings, items, trained, loss_of, on_step)
    if held_out:
        with autocast(settings, device), torch.no_grad():
            right = []
            for start in range(0, len(held_out), settings.batch_size):
                batch = collate(held_out[start : start + settings.batch_size], device)
                rows, targets = answer_rows(base, batch)
                right.append(backbone.logits(rows).argmax(-1) == targets)
            share = torch.cat(right).float().mean().item()
        log_held_out(settings, step, {"main": share})
        note(f"held-out top-1: {share:.1%}")
    write_lora(tuned, adapter)
    return adapter


def answer_rows(causal_lm: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """The hidden states (n, h) before each token of the answers, and these tokens (n,)."""
    decoder = causal_lm.get_decoder()
    hidden = decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1]
    place = torch.arange(1, batch.tokens.shape[1], device=batch.tokens.device)
    within = (place >= batch.stream_from[:, None]) & (place < batch.lengths[:, None])
    return hidden[within], batch.tokens[:, 1:][within]


def main(settings: LoraSettings) -> None:
    """Train LoRA on a language model, without streams."""
    print(train_lora(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
