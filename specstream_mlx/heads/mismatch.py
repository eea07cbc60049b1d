"""A watch over whether a mounted head is ever right."""

from collections.abc import Callable, Sequence

from ..engine.guesses import StreamGuesses
from ..terminal.notes import note

STEPS = 64


class HeadWatch:
    """Counts the guesses of a head, over all texts, until one is right.

    The guesses of a head that was trained for the target are right now and then, on any text. One
    that never is has been trained for another target, or is read otherwise than it was trained:
    ids, rotary base, norms. That harms no text, so nothing else would tell.

    Args:
        name: name of the head, for people.
        tell: function that says a sentence.
    """

    def __init__(self, name: str, tell: Callable[[str], None] = note):
        self._name, self._tell, self._left = name, tell, STEPS

    def judge(self, guesses: StreamGuesses, tokens: Sequence[int]) -> None:
        """Take in a head's guesses, and the tokens that were written behind them.

        After ``STEPS`` steps without a right guess for the next token it says so, once.
        """
        guessed = guesses.behind(())
        if not (self._left and guessed and tokens):
            return
        if any(token == tokens[0] for token, _ in guessed):
            self._left = 0
            return
        self._left -= 1
        if not self._left:
            self._tell(
                f"No guess of the {self._name} has been right in {STEPS} steps, so 1.0 tokens a "
                "call are accepted: it was probably trained for another model"
            )
