"""Steps that all ranks take alike, for as long as rank 0 takes them."""

import zlib
from collections.abc import Sequence

import numpy as np

from ..config import UserError
from .ranks import Ranks


class Lockstep:
    """The steps of one or several texts.

    Only rank 0 knows whether its user still wants more. The others are told before every step,
    together with a checksum of all tokens so far.

    Args:
        ranks: all ranks; ``None``: there is one process.
    """

    def __init__(self, ranks: Ranks | None):
        self._ranks, self._checksum = ranks, 0

    def goes_on(self, tokens: Sequence[int]) -> bool:
        """Whether rank 0 takes another step.

        Args:
            tokens: written by the last step.

        Raises:
            UserError: rank 0 has written other tokens.
        """
        if self._ranks is None:
            return True
        self._checksum = zlib.crc32(np.array(tokens, np.int64).tobytes(), self._checksum)
        if self._ranks.is_first:
            self._ranks.tell("step", self._checksum)
            return True
        found = self._ranks.told("step")
        if found not in (None, self._checksum):
            raise UserError("the ranks have written different tokens, expected those of rank 0")
        return found is not None

    def over(self) -> None:
        """Tell the others that no step follows; they may have ended by themselves."""
        if self._ranks is not None and self._ranks.is_first:
            self._ranks.tell("step", None)
