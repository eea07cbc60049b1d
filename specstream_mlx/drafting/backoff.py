"""When a drafter whose guesses cost time is to rest."""

from . import constants
from .running_average import averaged


class Backoff:
    """The rests of a drafter that has not been worth its time, each longer than the one before."""

    def __init__(self) -> None:
        self._gain, self._rounds = 0.0, 0
        self._left, self._span, self._due = 0, 1, False

    def note(self, gain: float) -> None:
        """Take in the tokens that a round of guesses was right about."""
        memory = constants.GAIN_MEMORY
        self._gain, self._rounds = averaged(self._gain, self._rounds, gain, memory)

    def begin(self, cost: float) -> bool:
        """Begin a step; returns whether the drafter rests in it.

        Args:
            cost: of a round of guesses, in tokens; 0: nothing has a price.
        """
        if not cost or not self._rounds:
            return False
        if self._left:
            self._left -= 1
            return True
        if self._due:  # once more, behind the rest
            self._due = False
            return False
        if self._gain >= cost:
            self._span = max(1, self._span // 2)
            return False
        self._left, self._due = self._span - 1, True
        self._span = min(2 * self._span, constants.LONGEST_REST)
        return True
