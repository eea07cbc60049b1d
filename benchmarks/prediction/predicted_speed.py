"""What is predicted of one chip, model and number of bits: a step, its tree and the rate."""

from dataclasses import asdict, dataclass
from typing import Any

from specstream_mlx.config import Mode


@dataclass(frozen=True)
class Prediction:
    """One chip, model and number of bits.

    Attributes:
        chip, model, bits, mode: what is predicted.
        placement: ``deferred`` or ``beside``; ``plain`` where no tree pays; ``does not fit``.
        draft: ``chain``, ``tree`` or ``none``.
        rows: of the tree that a step verifies, the root included.
        plain_ms: a step of plain decoding.
        step_ms: a step with this tree.
        accepted_length: expected tokens a step.
    """

    chip: str
    model: str
    bits: int
    mode: Mode
    placement: str
    draft: str
    rows: int
    plain_ms: float
    step_ms: float
    accepted_length: float

    @property
    def tokens_per_second(self) -> float:
        """Expected rate."""
        return 1e3 * self.accepted_length / self.step_ms

    @property
    def speedup(self) -> float:
        """Over plain decoding; 1 where that is what is chosen."""
        return self.accepted_length * self.plain_ms / self.step_ms

    def values(self) -> dict[str, Any]:
        """The line of the JSON file."""
        rates = {"tokens_per_second": self.tokens_per_second, "speedup": self.speedup}
        found = asdict(self) | rates
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}

    def cell(self) -> str:
        """The cell of the table."""
        if self.placement in ("plain", "does not fit"):
            return self.placement
        return (
            f"{self.speedup:.2f}x, {self.step_ms:.1f} ms, "
            f"{self.rows}{self.draft[0]}{self.placement[0]}"
        )
