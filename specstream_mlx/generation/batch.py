"""The batch: all sequences that are decoded at the same time, in one or several passes."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..loading.speculative_model import SpeculativeModel
from .kv_store import PromptCache
from .request import Request
from .scheduler import Scheduler
from .sequence import Step, Steps, TokenSequence


class Batch:
    """Sequences that are decoded at the same time, by turns.

    In a round one prompt has a turn, for a chunk of it, and then each pass, for a step: sequences
    that fit share a pass, those that stay alone have passes of their own.
    """

    def __init__(self) -> None:
        self.turn: list[TokenSequence] = []  # whose turn was the last one
        self.unread: list[TokenSequence] = []  # whose prompts are being read, or wait for that
        self._schedulers: list[Scheduler] = []
        self._due: list[TokenSequence | Scheduler] = []  # turns of this round that are to come
        self._size = 0  # turns of the last round
        self._is_timed = True  # whether rounds are one turn each, so that their time is its own

    def __len__(self) -> int:
        return len(self.unread) + sum(map(len, self._schedulers))

    def takes(self, model: SpeculativeModel) -> bool:
        """Whether a sequence of a model would go through one pass with others."""
        return any(scheduler.takes(model) for scheduler in self._schedulers)

    def add(self, sequence: TokenSequence) -> None:
        """Decode one more sequence, once its prompt is read."""
        if sequence.is_read:
            self._join(sequence)
        else:
            self.unread.append(sequence)

    def step(self) -> Steps:
        """Take the next turn, and return the steps that it brought; none if a prompt had it."""
        if not self._due:
            self._due = [*self.unread[:1], *self._schedulers]
            self._is_timed, self._size = max(self._size, len(self._due)) < 2, len(self._due)
        if not self._due:
            return []
        turn = self._due.pop(0)
        if isinstance(turn, TokenSequence):
            self.turn = [turn]
            turn.read()
            if turn.is_read:
                self.unread.remove(turn)
                self._join(turn)
            return []
        self.turn = list(turn.going)
        steps = turn.step()
        if not steps:  # rank 0 has left
            turn.close()
        self._drop_empty()
        return steps

    def remove(self, sequence: TokenSequence) -> None:
        """Decode a sequence no further; one that has ended is removed already."""
        self.unread = [other for other in self.unread if other is not sequence]
        for scheduler in self._schedulers:
            scheduler.remove(sequence)
        self._drop_empty()

    def close(self) -> None:
        """Stop all sequences, and tell the other ranks so."""
        for scheduler in self._schedulers:
            scheduler.close()
        self.unread, self._schedulers, self._due = [], [], []

    def _join(self, sequence: TokenSequence) -> None:
        for scheduler in self._schedulers:
            if scheduler.takes(sequence.model) and not sequence.request.quantizes:
                scheduler.add(sequence)
                return
        scheduler = Scheduler(lambda: self._is_timed)
        scheduler.add(sequence)
        self._schedulers.append(scheduler)
        self._due.append(scheduler)

    def _drop_empty(self) -> None:
        """Drop passes without sequences; the other ranks see their ends by themselves."""
        self._schedulers = [scheduler for scheduler in self._schedulers if scheduler]
        turns = [*self.unread, *self._schedulers]
        self._due = [turn for turn in self._due if turn in turns]


def decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    """Check that a model can do what is requested, and decode it, one ``Step`` per target call."""
    request.check(model)
    return _decode(model, request)


def _decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    yield from steps_of(TokenSequence(model, request))


def steps_of(sequence: TokenSequence) -> Iterator[Step]:
    """Decode a single sequence, one ``Step`` per target call; its prompt is read first."""
    with closing(Batch()) as batch:
        batch.add(sequence)
        while batch:
            for _, step in batch.step():
                yield step


def fill(
    prompt_cache: PromptCache,
    model: SpeculativeModel,
    prompt: Sequence[int],
    prefill_step_size: int = 2048,
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> None:
    """Read a prompt into ``prompt_cache``, so that it holds a KV row for each of its tokens."""
    quantization.check(model.model, model.config)
    # A sequence leaves its last token unread: that of the prompt is read by itself, as by mlx_lm.
    request = Request(
        prompt,
        prefill_step_size=prefill_step_size,
        quantization=quantization,
        prompt_cache=prompt_cache,
    )
    for tokens in (prompt, [*prompt, prompt[-1]]):
        TokenSequence(model, replace(request, prompt=tokens)).read_all()
