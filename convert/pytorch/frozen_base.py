"""A base that is only read: its last hidden states, its embedding, its LM head."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import Backbone


class FrozenBase:
    """What draft heads take from a base.

    Args:
        causal_lm: the base, of a tested architecture.

    Attributes:
        config: its transformers configuration.
        head: its LM head.
        softcap: see ``attention.softcapped``.

    Raises:
        UserError: the model is of another architecture.
    """

    def __init__(self, causal_lm: PreTrainedModel) -> None:
        causal_lm.requires_grad_(False)
        self._backbone, self._decoder = Backbone(causal_lm), causal_lm.get_decoder()
        self.config = causal_lm.config
        self.head: nn.Linear = self._backbone.head
        self.softcap = self._backbone.softcap

    @property
    def vocab_size(self) -> int:
        """The number of tokens V."""
        return len(self.head.weight)

    def embedding(self, tokens: Tensor) -> Tensor:
        """The stored rows (..., h) of the embedding for tokens (...)."""
        return self._backbone.embedding(tokens)

    @torch.no_grad()
    def last_hidden(self, tokens: Tensor) -> Tensor:
        """The states (B, T, h) behind the final norm of tokens (B, T), padded on the right."""
        return self._decoder(input_ids=tokens, use_cache=False).last_hidden_state
