"""Guesses of the streams beside the accepted node, in MIL, with fixed shapes.

Plain streams guess k tokens each. Streams that know the token before guess depth by depth behind
the k likeliest paths of the depth before, as ``engine.guess`` with ``LIKELIEST``.
"""

from collections.abc import Callable

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from specstream_mlx.engine.guess import SHORTLIST, WHOLE_HEAD
from specstream_mlx.models.streams import Streams

from .layers import Network, base_of, part, rms_norm

_EPSILON = 1e-6  # of the conditioned head's norm

Scored = Callable[[int, Var], tuple[Var, Var | None]]
"""Function of a stream's number and its paths' features (paths, h) that returns logits (paths, n)
and the tokens (n,) that they are of; ``None``: all."""


class StreamHead:
    """The final norm and the LM head for streams: the rows of what they may draft.

    Args:
        network: within the function.
        streams: of the adapter.
    """

    def __init__(self, network: Network, streams: Streams):
        self._network = network
        self._name, self._module = network.head
        self._ids = streams.vocabulary
        self.ids: Var | None = None
        if self._ids is not None:
            name = f"{network.adapter}.streams.vocabulary"
            self.ids = network.constants.integers(name, lambda: np.array(self._ids))

    def logits(self, hidden: Var) -> Var:
        """(rows, n) of rows (rows, h) after the last layer."""
        network, module = self._network, self._module
        hidden = network.final_norm(hidden)
        if self._ids is None:
            return network.linear(self._name, module, hidden)
        bias = None
        if "bias" in module:
            bias = network.own("streams.head_rows.bias", lambda: module.bias[self._ids])
        return network.product(hidden, self._weight(), bias)

    def logits_of(self, hidden: Var, places: Var) -> Var:
        """(rows, m) of a few tokens, by their places (m,) among the n."""
        network, hidden = self._network, self._network.final_norm(hidden)
        rows = mb.gather(x=self._weight(), indices=places, axis=0)
        found = mb.matmul(x=hidden, y=rows, transpose_y=True)
        if base_of(self._module) is self._module:
            return found
        down, up = network.lora(self._name, self._module)
        rows = mb.gather(x=up, indices=places, axis=0)
        return mb.add(
            x=found, y=mb.matmul(x=network.product(hidden, down), y=rows, transpose_y=True)
        )

    def _weight(self) -> Var:
        """(n, h)."""
        constants, module = self._network.constants, base_of(self._module)
        if self._ids is None:
            return constants.matrix(self._name, module)
        name = f"{self._network.adapter}.streams.head_rows"
        return constants.rows(name, self._name, module, np.array(self._ids))

    def named(self, places: Var) -> Var:
        """The tokens at places among the n."""
        return places if self.ids is None else mb.gather(x=self.ids, indices=places, axis=0)


def plain_guesses(network: Network, streams: Streams, hidden: Var, k: int) -> tuple[Var, Var]:
    """(gamma, k) tokens and their log-probabilities, from streams (gamma, h)."""
    head = StreamHead(network, streams)
    places, log_probs = _best(head.logits(hidden), k)
    return head.named(places), log_probs


def conditioned_guesses(
    network: Network,
    streams: Streams,
    hidden: Var,
    token: Var,
    k: int,
    shortlists: bool | None = None,
) -> tuple[Var, Var, Var]:
    """Guesses of streams that know the token before.

    Args:
        network: within the function.
        streams: of the adapter.
        hidden: (gamma, h) after the last layer.
        token: (1,) the target's own, which the first stream guesses behind.
        k: guesses behind a path, and paths.
        shortlists: as the ``Decoder``'s.

    Returns:
        (gamma, paths, k) tokens and log-probabilities, and (gamma, paths) parents, as
        ``engine.guesses.StreamGuesses`` has them; paths is 1 where gamma is, else k.
    """
    gamma = streams.config.num_streams
    conditioned, head = _Conditioned(network, streams), StreamHead(network, streams)
    if shortlists is None:
        drafted = streams.config.draft_vocabulary or network.head[1].weight.shape[0]
        shortlists = drafted > WHOLE_HEAD
    lists = _shortlists(conditioned, head, hidden, token) if shortlists else None
    before, joint = token, None
    parents = np.array([-1], np.int32)
    found: list[tuple[Var, Var, Var | np.ndarray]] = []
    for stream in range(gamma):
        features = conditioned.features(part(hidden, 0, stream, stream + 1), before, stream)
        if lists is None or not stream:
            places, log_probs = _best(head.logits(features), k)
        else:
            own = mb.squeeze(x=part(lists, 0, stream, stream + 1), axes=[0])
            places, log_probs = _best(head.logits_of(features, own), k)
            places = mb.gather(x=own, indices=places, axis=0)
        tokens = head.named(places)
        found.append((tokens, log_probs, parents))
        if stream == gamma - 1:
            break
        scores = log_probs
        if joint is not None:
            scores = mb.add(x=mb.expand_dims(x=joint, axes=[1]), y=log_probs)
        count = scores.shape[0] * k
        joint, parents = mb.topk(x=mb.reshape(x=scores, shape=(count,)), k=k, axis=0)
        before = mb.gather(x=mb.reshape(x=tokens, shape=(count,)), indices=parents, axis=0)
    paths = k if gamma > 1 else 1
    levels = [_filled(*level, paths, k) for level in found]
    return tuple(mb.stack(values=column, axis=0) for column in zip(*levels, strict=True))


class _Conditioned:
    """``ConditionedHead`` within a function."""

    def __init__(self, network: Network, streams: Streams):
        assert streams.head is not None
        self._network, self._head = network, streams.head
        self._dims = streams.config.hidden_size

    def features(self, stream_row: Var, before: Var, stream: int) -> Var:
        """(paths, h) features of one stream (1, h) behind tokens (paths,)."""
        own, weight, dims = self._network.own, self._head.down.weight, self._dims
        normalized = rms_norm(stream_row, _EPSILON)
        known = rms_norm(self._network.embed(before), _EPSILON)
        bias = own(f"streams.head.biases.{stream}", lambda: self._head.biases[stream])
        of_stream = own("streams.head.down.features", lambda: weight[:, :dims])
        of_token = own("streams.head.down.before", lambda: weight[:, dims:])
        inner = mb.add(
            x=self._network.product(normalized, of_stream, bias),
            y=self._network.product(known, of_token),
        )
        up = own("streams.head.up", lambda: self._head.up.weight)
        return mb.add(x=normalized, y=self._network.product(mb.silu(x=inner), up))


def _shortlists(conditioned: _Conditioned, head: StreamHead, hidden: Var, token: Var) -> Var:
    """(gamma, m) places of the likeliest tokens of each stream, as far as nothing is known."""
    first = conditioned.features(part(hidden, 0, 0, 1), token, 0)
    rows = first
    if hidden.shape[0] > 1:
        others = rms_norm(part(hidden, 0, 1, hidden.shape[0]), _EPSILON)
        rows = mb.concat(values=[first, others], axis=0)
    logits = head.logits(rows)
    return mb.topk(x=logits, k=min(SHORTLIST, logits.shape[-1]), axis=-1)[1]


def _best(logits: Var, k: int) -> tuple[Var, Var]:
    """(rows, k) places of the largest of (rows, n), and their log-probabilities in float32."""
    logits = mb.cast(x=logits, dtype="fp32")
    values, places = mb.topk(x=logits, k=k, axis=-1)
    total = mb.reduce_log_sum_exp(x=logits, axes=[-1], keep_dims=True)
    return places, mb.sub(x=values, y=total)


def _filled(
    tokens: Var, log_probs: Var, parents: Var | np.ndarray, paths: int, k: int
) -> tuple[Var, Var, Var | np.ndarray]:
    """The first stream's one path with those beside it that are none: their parent is -1."""
    missing = paths - tokens.shape[0]
    if not missing:
        return tokens, log_probs, parents
    empty = np.zeros((missing, k))
    return (
        mb.concat(values=[tokens, empty.astype(np.int32)], axis=0),
        mb.concat(values=[log_probs, empty.astype(np.float32)], axis=0),
        np.full(paths, -1, np.int32),
    )
