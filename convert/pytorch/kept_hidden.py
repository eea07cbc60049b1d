"""The base's hidden states below the streams, kept from one epoch to the next.

In lossless mode the base does not change, so its lower layers, most of a step's arithmetic, need to
read each sequence of the data once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specstream_mlx.train.items import Item

from .losses import Batch
from .reference import SpeculativeStreamingModel


class KeptHidden:
    """Hidden states by sequence, in the memory of the host.

    Args:
        model: in lossless mode.
    """

    def __init__(self, model: SpeculativeStreamingModel) -> None:
        self._model = model
        self._states: dict[tuple[int, ...], Tensor] = {}

    def of(self, items: Sequence[Item], batch: Batch) -> Tensor:
        """The main stream (B, T, h) before the first MSA layer, 0 behind a sequence's end.

        Args:
            items: B sequences.
            batch: the same, collated.
        """
        keys = [tuple(item.tokens) for item in items]
        missing = [row for row, key in enumerate(keys) if key not in self._states]
        if missing:
            with torch.no_grad():
                hidden = self._model.lower(batch.tokens[missing])
            for row, states in zip(missing, hidden, strict=True):
                self._states[keys[row]] = states[: len(keys[row])].cpu().clone()
        padded = torch.nn.utils.rnn.pad_sequence([self._states[k] for k in keys], batch_first=True)
        return padded.to(batch.tokens.device)
