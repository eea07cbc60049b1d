"""Hidden states of a base, kept from one epoch to the next.

In lossless mode, and under a draft head, the base does not change. So it, or its layers below the
streams, most of a step's arithmetic, needs to read each sequence of the data once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specstream_mlx.train.items import Item

from .losses import Batch


class KeptHidden:
    """Hidden states by sequence, in the memory of the host.

    Args:
        compute: function of tokens (B, T), padded on the right, that returns the states (B, T, h)
            of a model that does not change.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self._compute = compute
        self._states: dict[tuple[int, ...], Tensor] = {}

    def of(self, items: Sequence[Item], batch: Batch) -> Tensor:
        """The states (B, T, h), 0 behind a sequence's end.

        Args:
            items: B sequences.
            batch: the same, collated.
        """
        keys = [tuple(item.tokens) for item in items]
        missing = [row for row, key in enumerate(keys) if key not in self._states]
        if missing:
            with torch.no_grad():
                hidden = self._compute(batch.tokens[missing])
            for row, states in zip(missing, hidden, strict=True):
                self._states[keys[row]] = states[: len(keys[row])].cpu().clone()
        padded = torch.nn.utils.rnn.pad_sequence([self._states[k] for k in keys], batch_first=True)
        return padded.to(batch.tokens.device)
