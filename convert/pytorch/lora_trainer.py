"""The trainer of LoRA alone, as ``mlx_lm.lora`` and PEFT's users train it.

    python -m specstream_mlx.convert.pytorch.lora_trainer --model BASE --data train.jsonl \\
        --output OUT --epochs 1

Lossless streams can be trained for the result, whose text they leave as it is:

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode lossless --init-adapter OUT/adapter --output STREAMS --keep-hidden

It writes ``OUT/adapter`` in PEFT's format, the log ``OUT/log.jsonl`` and the checkpoint
``OUT/checkpoint.pt``, from which ``--resume`` continues.
"""

from pathlib import Path
from typing import Any

from .required_packages import import_or_exit

if __name__ == "__main__":
    import_or_exit()
import torch
from peft import PeftModel
from torch import Tensor

from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.train.items import Item

from .adapter_files import check_replaceable, write_lora
from .backbone import Backbone
from .load import load_base, put_lora
from .lora_settings import LoraSettings
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


class TunedModel:
    """A base with LoRA.

    Args:
        base: of a tested architecture, with LoRA on it.

    Raises:
        UserError: it is of another architecture.
    """

    def __init__(self, base: PeftModel) -> None:
        self.base = base
        causal_lm: Any = base.get_base_model()
        self._backbone, self._decoder = Backbone(causal_lm), causal_lm.get_decoder()

    def answer_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The hidden states (n, h) before each token of the answers, and these tokens (n,)."""
        hidden = self._decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1]
        place = torch.arange(1, batch.tokens.shape[1], device=batch.tokens.device)
        within = (place >= batch.stream_from[:, None]) & (place < batch.lengths[:, None])
        return hidden[within], batch.tokens[:, 1:][within]

    def loss(self, batch: Batch) -> Tensor:
        """The mean cross entropy of the answers' tokens in nats, a scalar."""
        rows, targets = self.answer_rows(batch)
        head, softcap = self._backbone.head, self._backbone.softcap
        return head_cross_entropy(rows, head.weight, targets, head.bias, softcap).mean()

    @torch.no_grad()
    def count_right(self, batch: Batch) -> tuple[int, int]:
        """Count the answers' tokens that are predicted, with the true ones before; and all."""
        rows, targets = self.answer_rows(batch)
        right = self._backbone.logits(rows).argmax(-1) == targets
        return int(right.sum()), len(targets)


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
    adapter = settings.output / "adapter"
    check_replaceable(adapter)
    begin(settings, adapter)
    device = training_device()
    base = put_lora(load_base(settings.model, settings.dtype), settings).to(device)
    model = TunedModel(base)
    items, held_out = load_items(settings, settings.prompt_template, base.config.vocab_size)
    weights = {name: p for name, p in base.named_parameters() if p.requires_grad}
    trained = Trained(weights, {settings.learning_rate: list(weights)}, settings.learning_rate)

    def loss_of(drawn: list[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        return model.loss(batch), {}

    step = run_steps(settings, items, trained, loss_of, on_step)
    if held_out:
        counts = []
        with autocast(settings, device):
            for start in range(0, len(held_out), settings.batch_size):
                batch = collate(held_out[start : start + settings.batch_size], device)
                counts.append(model.count_right(batch))
        right, total = map(sum, zip(*counts, strict=True))
        log_held_out(settings, step, {"main": right / total})
        note(f"held-out top-1: {right / total:.1%}")
    write_lora(base, adapter)
    return adapter


def main(settings: LoraSettings) -> None:
    """Train LoRA on a language model, without streams."""
    print(train_lora(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
