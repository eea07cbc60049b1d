"""Statistics of a text's drafts: what guesses cost and were worth, how often they were right."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass
class DraftStats:
    """Sums over the steps of a text, or of several."""

    guesser: Literal["streams", "draft head", None] = None
    timed: Literal["quiet", "busy", None] = None  # how the machine was; ``None``: not timed here
    steps: int = 0
    guessing: int = 0  # steps in which the streams guessed
    cost: float = 0.0  # of guessing, in plain steps
    price: float = 0.0  # tokens that this time brings without it
    worth: float = 0.0  # tokens by which guesses raised what steps were expected to be worth
    right: int = 0  # of the streams' first guesses
    guessed: int = 0
    lookup_right: int = 0
    lookup_guessed: int = 0

    def __add__(self, other: "DraftStats") -> "DraftStats":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        guessers, timed, *sums = pairs
        return DraftStats(
            guessers[0] or guessers[1],
            timed[0] or timed[1],
            *(ours + theirs for ours, theirs in sums),
        )

    @property
    def sentence(self) -> str | None:
        """Say why streams rested, where they did; ``None``: nothing guessed."""
        lookups = self.lookup_guessed and self.lookup_right / self.lookup_guessed
        if self.guesser is None or not self.guessing:
            said = f"Lookup's first guess was right {lookups:.0%} of the time"
            return said if self.lookup_guessed else None
        said = f"{self.guesser.capitalize()} guessed in "
        if self.guessing == self.steps:
            said += f"all {self.steps} steps" if self.steps > 1 else "the only step"
        else:
            cost, price, worth = (
                value / self.guessing for value in (self.cost, self.price, self.worth)
            )
            known = {"quiet": " here", "busy": " here (timed while others used the machine)"}
            where = known.get(self.timed or "", " (not timed here yet)")
            said += (
                f"{self.guessing} of {self.steps} steps: guessing took {cost:.2f} of a plain step"
                f"{where}, time for {price:.2f} tokens, and was to bring {worth:.2f}"
            )
        if self.guessed:
            said += f"; their first guess was right {self.right / self.guessed:.0%} of the time"
        if self.lookup_guessed:
            said += f"{',' if self.guessed else ';'} lookup's {lookups:.0%}"
        return said

    def values(self) -> dict[str, Any]:
        """The sentence with its counts, and averages of steps with guesses, as JSON values."""
        each = {"guess_cost": self.cost, "guess_price": self.price, "guess_worth": self.worth}
        return {
            "sentence": self.sentence,
            "steps": self.steps,
            "guessing_steps": self.guessing,
            **{name: round(sum_ / max(1, self.guessing), 3) for name, sum_ in each.items()},
            "first_guesses": {"right": self.right, "all": self.guessed},
            "lookups": {"right": self.lookup_right, "all": self.lookup_guessed},
            "timed": self.timed,
        }
