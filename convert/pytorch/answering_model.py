"""A language model that learns answers: the loss of their tokens, and the share that is right."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specstream_mlx.train.items import Item

from .backbone import Backbone
from .losses import Batch, head_cross_entropy
from .training_data import collate


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
