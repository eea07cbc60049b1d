"""A base that is only read: its last hidden states, its embedding, its LM head."""

from collections.abc import Sequence

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

    @property
    def norm(self) -> Tensor:
        """The weights (h,) of the final norm."""
        return self._backbone.norm_weight

    @torch.no_grad()
    def hidden(self, tokens: Tensor, boundaries: Sequence[int] = ()) -> Tensor:
        """Hidden states (B, T, (n + 1) * h), side by side.

        Args:
            tokens: (B, T) int64, padded on the right.
            boundaries: n layers, whose inputs come first; last the states behind the final norm.
        """
        output = self._decoder(
            input_ids=tokens, use_cache=False, output_hidden_states=bool(boundaries)
        )
        inner = [output.hidden_states[number] for number in boundaries]
        return torch.cat((*inner, output.last_hidden_state), dim=-1)
