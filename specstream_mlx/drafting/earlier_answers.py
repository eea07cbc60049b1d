"""Earlier answers, which outlive the texts: what suffix decoding drafts from besides the text."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from ..loading import SpeculativeModel
from .suffix_automaton import SuffixAutomaton

_MOST_TOKENS = 100_000  # of a model's answers; a token takes some 600 bytes
_MOST_MODELS = 2
_BETWEEN_TEXTS = -1


class Answers:
    """Answers that were written with one vocabulary."""

    def __init__(self) -> None:
        self.automaton, self._tokens = SuffixAutomaton(), 0

    def add(self, tokens: Sequence[int]) -> None:
        """Add an answer; when there are too many, begin anew."""
        if not tokens:
            return
        if self._tokens + len(tokens) > _MOST_TOKENS:
            self.automaton, self._tokens = SuffixAutomaton(), 0
        self.automaton.extend((_BETWEEN_TEXTS, *tokens[:_MOST_TOKENS]))
        self._tokens += len(tokens)


_OF_MODELS: OrderedDict[Path, Answers] = OrderedDict()


def answers_of(model: SpeculativeModel) -> Answers:
    """Return the process's answers of a model, whatever its adapter; the last models' are kept."""
    answers = _OF_MODELS.setdefault(model.path, Answers())
    _OF_MODELS.move_to_end(model.path)
    while len(_OF_MODELS) > _MOST_MODELS:
        _OF_MODELS.popitem(last=False)
    return answers
