"""Validation of streams in training: loss, accuracy and accepted length on validation text."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .batches import Item, replayed, step_starts
from .forward import StreamForward
from .loss import predicting, rows_at_once
from .sequences import Scored, sequences_of


@dataclass(frozen=True)
class Validation:
    """Figures on validation text, of which every position sees the tokens before it."""

    loss: float  # of Eq. 6 in nats, without the pruner's
    accuracy: list[float]  # of the likeliest tokens of the main stream and of streams 1 to gamma
    accepted_length: float  # tokens per step of a greedy chain draft, by a replay


def validate(
    forward: StreamForward, batches: Sequence[Sequence[Item]], alphas: Sequence[float]
) -> Validation:
    """Validate on at least one batch, with the weights of Eq. 6, the main stream's first."""
    rows = len(alphas)
    losses, right, counts = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    tokens = steps = 0
    for items in batches:
        sequences, scored = sequences_of(items, [1.0] * rows, exits=False)
        read = predicting(forward, sequences, forward(sequences))
        read = read.reshape(-1, read.shape[-1])[scored.rows]
        correct, lost = _scores(forward, read, scored)
        place, stream = np.array(scored.rows), np.array(scored.streams)
        np.add.at(losses, stream, lost)
        np.add.at(right, stream, correct)
        np.add.at(counts, stream, 1)
        hits = np.zeros(sequences.positions.size * rows, bool)
        hits[place] = correct
        for item, of_item in zip(items, hits.reshape(len(items), -1, rows), strict=True):
            drafted = item.completion_tokens - 1  # the first token is the prompt's
            tokens += drafted
            steps += len(step_starts(of_item[:drafted, 1:]))
    counts = np.maximum(counts, 1)
    return Validation(
        loss=float((np.array(alphas) * losses / counts).sum()),
        accuracy=(right / counts).tolist(),
        accepted_length=tokens / max(steps, 1),
    )


def replay(forward: StreamForward, items: Sequence[Item], places: np.ndarray | None) -> list[Item]:
    """Draw the positions of a batch at which a chain draft of these streams begins its steps.

    ``places`` are those of tokens in the draft vocabulary (``places_of``).
    """
    gamma = forward.streams.config.num_streams
    sequences, scored = sequences_of(items, [0.0] + [1.0] * gamma, exits=False, places=places)
    read = predicting(forward, sequences, forward(sequences))
    read = read.reshape(-1, read.shape[-1])[scored.rows]
    hits, rows = np.zeros(sequences.positions.size * (1 + gamma), bool), np.array(scored.rows)
    at_once = rows_at_once(forward.streams.config.draft_vocabulary or forward.vocab_size)
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        guesses = mx.argmax(forward.model.stream_head(read[None, part])[0], axis=-1)
        hits[rows[part]] = np.array(guesses == scored.targets[part])
    by_item = hits.reshape(len(items), -1, 1 + gamma)[..., 1:]
    return [replayed(item, of_item) for item, of_item in zip(items, by_item, strict=True)]


def _scores(
    forward: StreamForward, read: mx.array, scored: Scored
) -> tuple[np.ndarray, np.ndarray]:
    """Tell of each row whether its likeliest allowed token is the target, and the cross entropy."""
    at_once, vocabulary = rows_at_once(forward.vocab_size), forward.streams.vocabulary
    if vocabulary is not None:
        never = mx.ones(forward.vocab_size, mx.bool_)
        never[vocabulary] = False
    correct, lost = np.zeros(len(read), bool), np.zeros(len(read))
    for start in range(0, len(read), at_once):
        part = slice(start, start + at_once)
        wanted = scored.targets[part]
        logits = forward.model.head(read[None, part])[0].astype(mx.float32)
        losses = nn.losses.cross_entropy(logits, wanted)
        if vocabulary is not None:
            of_stream = scored.streams[part, None] > 0
            logits = mx.where(of_stream & never, -mx.inf, logits)
        right = mx.argmax(logits, axis=-1) == wanted
        mx.eval(losses, right)
        correct[part], lost[part] = np.array(right), np.array(losses)
    return correct, lost
