"""The settings of a run that trains another method's draft head."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from specstream_mlx.config import UserError
from specstream_mlx.options import (
    FLAG,
    PATH,
    POSITIVE,
    TEXT,
    check_options,
    choice,
    integer,
    number,
    option,
)

from .training_settings import RunSettings

MEDUSA, HYDRA, EAGLE, EAGLE3 = KINDS = "medusa", "hydra", "eagle", "eagle3"

_RATES = {MEDUSA: 3e-3, HYDRA: 2e-3, EAGLE: 3e-3, EAGLE3: 2e-3}  # by benchmarks/NOTES.md
_TEACHERS = {MEDUSA: "text", HYDRA: "base", EAGLE: "base", EAGLE3: "base"}
_DECAYS = {MEDUSA: 0.8, HYDRA: 1.0, EAGLE: 1.0, EAGLE3: 0.8}

_OF_KINDS = {
    "num_layers": (MEDUSA, HYDRA),
    "intermediate_size": (EAGLE, EAGLE3),
    "own_lm_heads": (MEDUSA,),
    "token_loss": (EAGLE,),
}
"""The kinds that a setting is for; any other is for all."""


@dataclass
class HeadSettings(RunSettings):
    """The settings of a run: which head, and what it learns from.

    Where a default is ``None``, it is that of the method's own recipe, but for the learning rate:
    recipes are of bases fifty times as large, and a base of 135 M parameters wants higher ones.
    """

    FREE_TO_CHANGE: ClassVar[set[str]] = RunSettings.FREE_TO_CHANGE | {"hidden_states"}

    kind: str = option(MEDUSA, choice(*KINDS), "Method: medusa, hydra, eagle or eagle3.")
    num_heads: int = option(
        4, integer(1, 16), "Heads; of eagle3 depths, of eagle those that are measured alone."
    )
    num_layers: int = option(1, integer(1), "Layers of each head, of medusa and hydra.")
    intermediate_size: int | None = option(
        None, integer(1), "Width of the MLP, of eagle and eagle3. Default: the base's."
    )
    own_lm_heads: bool = option(
        False,
        FLAG,
        "Whether each head has an LM head of its own, which starts as the base's (medusa).",
        "--own-lm-heads/--no-own-lm-heads",
    )
    draft_vocabulary: int = option(
        0,
        integer(0),
        "Tokens that may be drafted, the most frequent ones of the completions. 0: all.",
    )
    teacher: str | None = option(
        None,
        choice("text", "base"),
        "What the tokens' loss compares with: the completions, or the base's probabilities. "
        "Default: text for medusa, base for the others.",
    )
    decay: float | None = option(
        None,
        POSITIVE,
        "Weight of each depth over that before it. Default: 0.8 for medusa and eagle3, 1.",
    )
    token_loss: float = option(
        0.1, number(0), "Weight of the tokens' loss beside that of the hidden states, of eagle."
    )
    learning_rate: float | None = option(
        None,
        POSITIVE,
        "Peak of the learning rate. Default: 3e-3 medusa and eagle, 2e-3 the others, which are "
        "best for a base of 135 M parameters; larger ones want less.",
    )
    prompt_template: str | None = option(
        None, TEXT, "Text around every prompt, with {text} in its place."
    )
    hidden_states: Path | None = option(
        None,
        PATH,
        "Directory that keeps the base's hidden states, also for other runs. Default: in memory.",
    )

    def check(self) -> None:
        """Check all that can be checked without reading a file.

        Raises:
            UserError: a setting is out of range, or two exclude each other.
        """
        check_options(self)
        self.check_run()
        for one in fields(self):
            kinds = _OF_KINDS.get(one.name, KINDS)
            if self.kind not in kinds and getattr(self, one.name) != one.default:
                raise UserError(
                    f"{one.name} is for {' and '.join(kinds)}, expected none of it for {self.kind}"
                )

    @property
    def peak(self) -> float:
        """The peak of the learning rate."""
        return self.learning_rate or _RATES[self.kind]

    @property
    def learns_from_base(self) -> bool:
        """Whether the tokens' loss compares with the base's probabilities."""
        return (self.teacher or _TEACHERS[self.kind]) == "base"

    def weights(self, depth: int) -> list[float]:
        """The weight of each depth's loss."""
        decay = self.decay or _DECAYS[self.kind]
        return [decay ** (1 + level) for level in range(depth)]
