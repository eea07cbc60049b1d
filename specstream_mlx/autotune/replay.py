"""Replay: what any way to draft would have accepted on recorded texts, without running a model.

Greedy decoding writes the same text whatever is drafted (DESIGN, section 4), and a stream's guesses
depend on nothing but the text before them. So each text is generated once, with an empty tree and
the streams' guesses noted behind every token; then the steps of any settings are walked through on
the host, exactly: how many tokens each commits and how many nodes it sends through the model.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..drafting.drafter import NoDrafter, make_drafter
from ..drafting.settings import DraftSettings
from ..drafting.tree import DraftTree
from ..loading import SpeculativeModel
from ..loop import Request, decode
from .acceptance import AcceptanceCounts


@dataclass(frozen=True)
class Recording:
    """A prompt, what the target wrote behind it, and what the streams guessed.

    Attributes:
        prompt: token ids.
        tokens: (n,) what was generated.
        candidates: (n, gamma, k) token ids guessed to follow each of ``tokens``, best first; gamma
            is 0 without streams.
        log_probs: (n, gamma, k) their log-probabilities in nats.
    """

    prompt: list[int]
    tokens: list[int]
    candidates: np.ndarray
    log_probs: np.ndarray


def record(
    model: SpeculativeModel,
    prompt: Sequence[int],
    max_tokens: int,
    width: int,
    *,
    end_tokens: Collection[int] = (),
    least_tokens: int = 1,
    seconds: float = float("inf"),
) -> Recording:
    """Generate greedily, one token a step.

    Args:
        model: base and adapter, with streams or without.
        prompt: token ids.
        max_tokens: tokens at most.
        width: k, guesses noted of each stream.
        end_tokens: the text ends with the first of these.
        least_tokens: tokens that are generated however long it takes.
        seconds: the text ends after so many.
    """
    settings = DraftSettings(tree_width=width, tree_size=None)
    request = Request(prompt, settings, make_drafter=lambda *_: NoDrafter())
    end = time.perf_counter() + seconds
    tokens, guesses = [], []
    for step in decode(model, request):
        tokens += step.tokens
        guesses.append(step.result.guesses())
        late = len(tokens) >= least_tokens and time.perf_counter() > end
        if late or len(tokens) >= max_tokens or tokens[-1] in end_tokens:
            break
    candidates, log_probs = map(np.stack, zip(*guesses, strict=True))
    return Recording(list(prompt), tokens, candidates, log_probs)


@dataclass(frozen=True)
class Replayed:
    """The steps that drafting with some settings takes on recorded texts.

    Each text's first step is left out: it verifies no drafts, whatever the settings, and its time
    counts as the prompt's.

    Attributes:
        accepted: for each step, tokens that it commits.
        nodes: for each step, tree nodes that it verifies, the root included.
        host_seconds: for each step, mean seconds in which the host grows its tree.
    """

    accepted: list[int]
    nodes: list[int]
    host_seconds: float

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return sum(self.accepted)

    @property
    def call_reduction(self) -> float:
        """Tokens per step."""
        return self.tokens / len(self.accepted)


def replay(recordings: Iterable[Recording], settings: DraftSettings) -> Replayed:
    """Replay greedy decoding of recorded texts with ``settings``, which must not prune."""
    accepted: list[int] = []
    nodes: list[int] = []
    seconds = 0.0
    for text in recordings:
        seconds += _replay_one(text, settings, accepted, nodes)
    return Replayed(accepted, nodes, seconds / max(1, len(accepted)))


def _replay_one(
    text: Recording, settings: DraftSettings, accepted: list[int], nodes: list[int]
) -> float:
    """Append the steps of one text. Returns the seconds in which its trees were grown."""
    start = time.perf_counter()
    drafter = make_drafter(settings, text.candidates.shape[1] > 0, text.prompt)
    seen, at, seconds = 0, 0, time.perf_counter() - start
    few, guessed = settings.stream_nodes, True
    while at < len(text.tokens) - 1:
        start = time.perf_counter()
        drafter.accept(text.tokens[seen : at + 1])
        seen, depth = at + 1, None if guessed else 0
        guesses = text.candidates[at, :depth], text.log_probs[at, :depth]
        tree = drafter.grow(text.tokens[at], *guesses)
        seconds += time.perf_counter() - start
        last = accepted_node(tree, text.tokens[at + 1 :])
        guessed = few is None or few >= len(tree) or last in tree.likeliest_last(few)
        committed = 1 + int(tree.depths[last])
        committed = min(committed, len(text.tokens) - 1 - at)
        accepted.append(committed)
        nodes.append(len(tree))
        at += committed
    return seconds


def accepted_node(tree: DraftTree, following: Sequence[int]) -> int:
    """The deepest node whose path is how ``following`` begins."""
    node = 0
    children: dict[tuple[int, int], int] = {}
    for child, (parent, token) in enumerate(
        zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    ):
        children.setdefault((parent, token), child)
    for token in following:
        below = children.get((node, token))
        if below is None:
            break
        node = below
    return node


def acceptance(recordings: Sequence[Recording]) -> AcceptanceCounts | None:
    """How often the streams' guesses were right behind each token; ``None`` without streams."""
    depth, width = recordings[0].candidates.shape[1:]
    if not depth:
        return None
    counts = AcceptanceCounts(depth, width)
    for text in recordings:
        for at, candidates in enumerate(text.candidates):
            counts.add(candidates, text.tokens[at + 1 :])
    return counts
