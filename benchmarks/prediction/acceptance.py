"""Acceptance of the streams' candidates by depth and rank, measured on prompts."""

from collections.abc import Collection, Sequence

import numpy as np

from specstream_mlx.config import UserError
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.guesses import StreamGuesses
from specstream_mlx.loading import SpeculativeModel
from specstream_mlx.loop import Request, decode


class AcceptanceCounts:
    """Counts of right candidates.

    A depth counts only if every token before it was among its own depth's candidates: only then are
    deeper nodes reached.

    Attributes:
        hits: (depth, rank) times that the candidate was right.
        reached: (depth,) times that the depth was reached.
    """

    def __init__(self, depth: int, width: int):
        self.hits = np.zeros((depth, width), np.int64)
        self.reached = np.zeros(depth, np.int64)

    def add(self, guesses: StreamGuesses, following: Sequence[int]) -> None:
        """Count one step.

        Args:
            guesses: the streams' guesses after a token.
            following: tokens that the target wrote after it, perhaps fewer than ``depth``.
        """
        for depth, token in enumerate(following[: guesses.depth]):
            candidates = [guess for guess, _ in guesses.behind(tuple(following[:depth]))]
            if not candidates:  # no stream guessed behind this path
                return
            self.reached[depth] += 1
            self.hits[depth] += np.array(candidates) == token
            if token not in candidates:
                return

    def rates(self) -> tuple[tuple[float, ...], ...]:
        """Conditional acceptance by depth and rank; 0 at depths that were never reached."""
        rates = self.hits / np.maximum(self.reached, 1)[:, None]
        return tuple(map(tuple, rates.tolist()))


def measure_acceptance(
    model: SpeculativeModel,
    prompts: Sequence[Sequence[int]],
    settings: DraftSettings,
    max_tokens: int = 128,
    end_tokens: Collection[int] = (),
) -> AcceptanceCounts:
    """Generate from every prompt and count the streams' right candidates.

    They are counted where steps begin, since drafts are made there, so measure with settings like
    those that the counts are for. ``tree_width`` gives the ranks.

    Args:
        model: base and adapter; the streams must draft.
        prompts: token ids.
        settings: settings of the drafts.
        max_tokens: number of tokens to generate from each prompt, at least.
        end_tokens: token ids that end a text.

    Raises:
        UserError: no streams draft.
    """
    if model.streams is None or not settings.speculates:
        raise UserError("acceptance was to be measured without streams, expected some that draft")
    config = model.streams.config
    settings.check(model.config["vocab_size"], config)
    depth = settings.streams_run(config)
    counts = AcceptanceCounts(depth, settings.tree_width)
    for prompt in prompts:
        text: list[int] = []
        drafts: list[tuple[int, StreamGuesses]] = []
        for step in decode(model, Request(prompt, settings)):
            text += step.tokens
            ended = next((i for i, token in enumerate(text) if token in end_tokens), None)
            if ended is not None:
                text = text[: ended + 1]
                break
            drafts.append((len(text), step.result.guesses()))
            if len(text) >= max_tokens:
                break
        for start, guesses in drafts:
            counts.add(guesses, text[start : start + depth])
    return counts
