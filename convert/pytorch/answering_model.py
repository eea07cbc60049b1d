"""A language model that learns the tokens of answers: their loss, and the share that is right."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from specstream_mlx.terminal.notes import note
from specstream_mlx.train.items import Item

from .backbone import Backbone
from .losses import Batch, head_cross_entropy
from .run_settings import AnsweringSettings
from .training_data import collate, load_items
from .training_run import OnStep, Trained, autocast, log_held_out, run_steps, training_device


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
