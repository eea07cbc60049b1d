"""The n-gram loss of Speculative Streaming (arXiv 2402.11131, Eq. 6)."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .forward import Hidden, StreamForward
from .sequences import Scored, Sequences
from .settings import stream_losses

_LOGITS_AT_ONCE, _LEAST_ROWS = 1 << 20, 32
"""Most logits of a slice of rows, which bounds the memory, and the least rows of one."""


def head_cross_entropy(
    head: Callable[[mx.array], mx.array], hidden: mx.array, targets: mx.array, vocab_size: int
) -> mx.array:
    """Compute the cross entropy (n,) of rows (n, h) and targets (n,) in nats, float32.

    The logits of all rows never exist at once: the forward pass goes slice by slice, and computes
    the rows' gradient with them. The head, final norm included, gets none.
    """
    if not len(hidden):
        return mx.zeros(0)
    at_once = rows_at_once(vocab_size)

    def of_slice(rows: mx.array, wanted: mx.array) -> tuple[mx.array, mx.array]:
        losses = nn.losses.cross_entropy(head(rows[None])[0].astype(mx.float32), wanted)
        return losses.sum(), losses

    with_gradient = mx.value_and_grad(of_slice)

    @mx.custom_function
    def forward(hidden: mx.array) -> tuple[mx.array, mx.array]:
        losses, gradients = list[mx.array](), list[mx.array]()
        for start in range(0, len(hidden), at_once):
            part = slice(start, start + at_once)
            rows = hidden[part]
            if gradients:  # one after the other, or MLX computes many slices at a time
                (rows,) = mx.depends([rows], [losses[-1], gradients[-1]])
            (_, loss), gradient = with_gradient(rows, targets[part])
            losses.append(loss)
            gradients.append(gradient)
        return mx.concatenate(losses), mx.concatenate(gradients)

    @forward.vjp
    def backward(
        primals: mx.array, cotangents: list[mx.array], outputs: list[mx.array]
    ) -> mx.array:
        return cotangents[0][:, None].astype(outputs[1].dtype) * outputs[1]

    outputs: Any = forward(hidden)
    return outputs[0]


def rows_at_once(vocab_size: int) -> int:
    """Return the number of rows whose logits are held at a time."""
    return max(_LEAST_ROWS, _LOGITS_AT_ONCE // vocab_size)


def n_gram_loss(
    forward: StreamForward, sequences: Sequences, scored: Scored, loss: str = "cross_entropy"
) -> tuple[mx.array, mx.array]:
    """Compute Eq. 6's summands (1 + gamma,), ``alpha_j CE(stream j, y_{t+j})``, and the pruner's.

    Stream 0 is the main stream; the streams may have another ``loss``. A conditioned head reads
    the true tokens before, and streams with a draft vocabulary have probabilities of its tokens
    alone. The pruner's loss does not reach below it.
    """
    hidden, model = forward(sequences), forward.model
    config, vocab_size = forward.streams.config, forward.vocab_size
    rows = predicting(forward, sequences, hidden)
    rows = rows.reshape(-1, config.hidden_size)[scored.rows]
    count, drafted = scored.main_rows, config.draft_vocabulary or vocab_size
    losses = mx.concatenate(
        [
            head_cross_entropy(model.head, rows[:count], scored.targets[:count], vocab_size),
            head_cross_entropy(model.stream_head, rows[count:], scored.targets[count:], drafted),
        ]
    )
    if loss != "cross_entropy":
        places = sequences.positions.size
        entropies = mx.full(places * (1 + config.num_streams), mx.inf)
        entropies[scored.rows] = losses
        main, streams = mx.split(entropies.reshape(places, -1), [1], axis=1)
        every = mx.concatenate([main, stream_losses(loss, streams)], axis=1)
        losses = every.reshape(-1)[scored.rows]
    per_stream = mx.zeros(1 + config.num_streams).at[scored.streams].add(scored.weights * losses)
    pruner = mx.array(0.0)
    if scored.exits.size:
        seed = mx.stop_gradient(hidden.seed).reshape(-1, config.hidden_size)[scored.exits]
        early = model.early_exit_features(seed[None])[0]
        losses = head_cross_entropy(model.head, early, scored.exit_targets, vocab_size)
        pruner = scored.exit_weight * losses.sum()
    return per_stream, pruner


def predicting(forward: StreamForward, sequences: Sequences, hidden: Hidden) -> mx.array:
    """Return the LM head's input rows (B, C, 1 + gamma, h), the main stream's first."""
    head, streams = forward.streams.head, hidden.streams
    if head is not None:
        positions = sequences.positions.reshape(len(sequences.tokens), -1)
        places = positions[..., None] + mx.arange(1, streams.shape[2] + 1)
        places = mx.minimum(places, sequences.tokens.shape[1] - 1)
        before = sequences.tokens[mx.arange(len(places))[:, None, None], places]
        streams = head(streams, forward.model.embed(before))
    return mx.concatenate([hidden.main[:, :, None], streams], axis=2)
