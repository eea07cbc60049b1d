"""Several adapters of one base in turn: each is mounted before every text that it decodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .runner import STREAMS_ALONE, Mounted, Run, Way, measure_costs


@dataclass(frozen=True)
class Swapped:
    """Decodes with an adapter, which is mounted before every text.

    Attributes:
        mounted: base and tokenizer.
        adapter: directory.
        way: how to decode once it is mounted.
    """

    mounted: Mounted
    adapter: Path
    way: Way

    def __call__(self, prompt: Sequence[int]) -> Run:
        self.mounted.model.swap_adapter(self.adapter)
        return self.way(prompt)


def alone(name: str) -> str:
    """What an adapter's way without prompt lookup is called."""
    return f"{name}, {STREAMS_ALONE}"


def drafting_ways(
    mounted: Mounted, adapter: Path, name: str, prompts: Sequence[Sequence[int]]
) -> dict[str, Way]:
    """The ways to draft with an adapter, as is worth most: ``name`` and ``alone(name)``.

    Args:
        mounted: the base with the adapter, whose costs are measured first.
        adapter: its directory.
        name: what the first way is called.
        prompts: texts to measure costs on.

    Raises:
        UserError: the texts are too short to time steps in.
    """
    measure_costs(mounted, prompts)
    return {
        key: Swapped(mounted, adapter, mounted.ours(drafts))
        for key, drafts in ((name, None), (alone(name), STREAMS_ALONE))
    }
