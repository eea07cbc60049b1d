"""The trainer of LoRA alone, as ``mlx_lm.lora`` and PEFT's users train it.

    python -m specstream_mlx.convert.pytorch.lora_trainer --model BASE --data train.jsonl \\
        --output OUT --epochs 1

Lossless streams can be trained for the result, whose text they leave as it is:

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode lossless --init-adapter OUT/adapter --output STREAMS

It writes ``OUT/adapter`` in PEFT's format, the log ``OUT/log.jsonl`` and the checkpoint
``OUT/checkpoint.pt``, from which ``--resume`` continues.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .required_packages import import_or_exit

if __name__ == "__main__":
    import_or_exit()
import torch
from torch import Tensor
from torch.nn import Parameter
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
from .training_settings import AnsweringSettings, LoraSettings


class AnsweringModel:
    """A causal language model without streams, with LoRA or without.

    Args:
        causal_lm: of a tested architecture.

    Raises:
        UserError: it is of another architecture.
    """

    def __init__(self, causal_lm: PreTrainedModel) -> None:
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
    def share_right(self, items: Sequence[Item], batch_size: int) -> float:
        """The share of the answers' tokens that are predicted, with the true ones before them."""
        right = total = 0
        for start in range(0, len(items), batch_size):
            batch = collate(
                list(items[start : start + batch_size]), self._backbone.head.weight.device
            )
            rows, targets = self.answer_rows(batch)
            right += int((self._backbone.logits(rows).argmax(-1) == targets).sum())
            total += len(targets)
        return right / total


def train_to_answer(
    settings: AnsweringSettings,
    causal_lm: PreTrainedModel,
    weights: Mapping[str, Parameter],
    on_step: OnStep | None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Train some weights of a model on a run's answers, and log what it then predicts.

    Args:
        settings: the run's, which has begun.
        causal_lm: the model, on the device that trains.
        weights: those that are trained, by name.
        on_step: see ``OnStep``.
        about: further figures for the log's last line.

    Raises:
        UserError: a file cannot be read or written.
    """
    model = AnsweringModel(causal_lm)
    items, held_out = load_items(settings, settings.prompt_template, causal_lm.config.vocab_size)
    trained = Trained(weights, {settings.learning_rate: list(weights)}, settings.learning_rate)

    def loss_of(drawn: list[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        return model.loss(batch), {}

    step = run_steps(settings, items, trained, loss_of, on_step)
    if held_out:
        with autocast(settings, training_device()):
            right = model.share_right(held_out, settings.batch_size)
        log_held_out(settings, step, {"main": right} | dict(about or {}))
        note(f"held-out top-1: {right:.1%}")


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
    check_adapter_replaceable(adapter)
    begin(settings, adapter)
    base = put_lora(load_base(settings.model, settings.dtype), settings).to(training_device())
    weights = {name: p for name, p in base.named_parameters() if p.requires_grad}
    train_to_answer(settings, base.get_base_model(), weights, on_step)
    write_lora(base, adapter)
    return adapter


def main(settings: LoraSettings) -> None:
    """Train LoRA on a language model, without streams."""
    print(train_lora(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
