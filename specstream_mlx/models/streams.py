"""The trained parts of speculative streams: embeddings, initialisation, adapters, head, pruner."""

from collections.abc import Callable
from copy import copy
from operator import is_
from typing import Any
from weakref import ref

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..stream_config import StreamConfig

ValueRotation = Callable[[mx.array], mx.array]

_EPSILON = 1e-6  # of the RMS norm without weights; convert/pytorch/reference.py has the same


class LowRank(nn.Module):
    """A rank-r map without bias: ``up(down(x))``, in x's dtype.

    Weights may have a leading axis of sequences, each with a map of its own.
    """

    def __init__(self, dims: int, rank: int):
        super().__init__()
        self.down = nn.Linear(dims, rank, bias=False)
        self.up = nn.Linear(rank, dims, bias=False)
        self.up.weight = mx.zeros_like(self.up.weight)

    def __call__(self, x: mx.array) -> mx.array:
        down, up = (part.weight.swapaxes(-1, -2) for part in (self.down, self.up))
        return (x @ down @ up).astype(x.dtype)


class ConditionedHead(nn.Module):
    """Head of streams that know the token before the one that they predict.

    Stream j's features s become ``n(s) + U silu(D [n(s); n(E(u))] + b_j)`` after a token u, with n
    an RMS norm without weights and E the embedding; the base's final norm and head follow. At the
    start U is zero. Tensors may have a leading axis of sequences, each with a head of its own.
    """

    def __init__(self, dims: int, rank: int, count: int):
        super().__init__()
        self.down = nn.Linear(2 * dims, rank, bias=False)
        self.up = nn.Linear(rank, dims, bias=False)
        self.up.weight = mx.zeros_like(self.up.weight)
        self.biases = mx.zeros((count, rank))

    def __call__(self, features: mx.array, before: mx.array) -> mx.array:
        """Compute streams' features (.., count, h), each after a token, embedded in ``before``."""
        features = self.normalized(features)
        return self.after(features, self.of_streams(features), before)

    def of_streams(self, features: mx.array) -> mx.array:
        """Apply the streams' half of D to normalized features and add b; returns (.., count, r)."""
        count, dims = features.shape[-2:]
        down = self.down.weight[..., :dims].swapaxes(-1, -2)
        return features @ down + self.biases[..., :count, :]

    def after(self, features: mx.array, read: mx.array, before: mx.array) -> mx.array:
        """Compute the features (.., h) of a stream after several tokens.

        ``features`` are normalized, ``read`` (.., r) is from ``of_streams``, and ``before`` (.., h)
        are embeddings of the tokens before; leading axes broadcast.
        """
        down = self.down.weight[..., before.shape[-1] :].swapaxes(-1, -2)
        read = read + self.normalized(before) @ down
        up = self.up.weight.swapaxes(-1, -2)
        return features + (nn.silu(read) @ up).astype(features.dtype)

    def normalized(self, features: mx.array) -> mx.array:
        """Normalize features or embeddings (.., h); alone, they mean an unknown token before."""
        return mx.fast.rms_norm(features, None, _EPSILON)


class Streams(nn.Module):
    """Speculative streams of one adapter (Speculative Streaming, section 3.1).

    Parameter names are those of ``StreamConfig.tensor_shapes``: ``streams.*`` and ``pruner.*``.
    """

    def __init__(self, config: StreamConfig):
        super().__init__()
        self.config = config
        self._rows: tuple[ref[nn.Module], list[mx.array]] | None = None  # and what they are of
        self._barred: mx.array | None = None
        self.streams: dict[str, Any] = {}
        if config.stream_init != "value_rotation":
            self.streams["embeddings"] = mx.zeros((config.num_streams, config.hidden_size))
        if config.stream_init == "linear":
            self.streams["init"] = LowRank(config.hidden_size, config.stream_init_rank)
        if config.stream_adapter_rank:
            # Below the MSA layers empty ones: mlx reads names that are numbers as lists.
            self.streams["adapters"] = [{} for _ in range(config.first_msa_layer)] + [
                LowRank(config.hidden_size, config.stream_adapter_rank)
                for _ in range(config.num_msa_layers)
            ]
        if config.stream_head_rank:
            self.streams["head"] = ConditionedHead(
                config.hidden_size, config.stream_head_rank, config.num_streams
            )
        if config.draft_vocabulary:
            self.streams["vocabulary"] = mx.arange(config.draft_vocabulary, dtype=mx.int32)
        if config.pruner_rank:
            self.pruner = LowRank(config.hidden_size, config.pruner_rank)

    def seed(self, hidden: mx.array, count: int) -> mx.array:
        """Make the first ``count`` streams ``f_eta(M) + P_j`` (Eq. 4), (.., count, h).

        ``hidden`` are the main-stream rows (.., h) at the input of the first MSA layer.
        """
        if "init" in self.streams:
            hidden = self.streams["init"](hidden)
        hidden = hidden[..., None, :]
        if "embeddings" in self.streams:
            return hidden + self._embeddings(count).astype(hidden.dtype)
        shape = *hidden.shape[:-2], count, hidden.shape[-1]
        return mx.broadcast_to(hidden, shape)

    def _embeddings(self, count: int) -> mx.array:
        return self.streams["embeddings"][:count]

    @property
    def head(self) -> ConditionedHead | None:
        return self.streams.get("head")

    @property
    def vocabulary(self) -> mx.array | None:
        return self.streams.get("vocabulary")

    @property
    def barred(self) -> mx.array | None:
        """(sequences, n) 0, or -inf at tokens of other sequences' vocabularies.

        ``None``: all sequences may draft all of ``vocabulary``.
        """
        return self._barred

    def head_rows(self, head: nn.Module) -> nn.Module:
        """Return the base's LM head with the rows of the draft vocabulary alone.

        They are a copy, one for all who hold it at a time, and none is kept here: of many adapters
        in memory, those that write have rows.
        """
        vocabulary = self.vocabulary
        if vocabulary is None:
            return head
        sources = [vocabulary, *dict(tree_flatten(head.parameters())).values()]
        if self._rows is not None:
            rows, known = self._rows[0](), self._rows[1]
            same = len(known) == len(sources) and all(map(is_, known, sources))
            if rows is not None and same:
                return rows
        rows = rows_of(head, vocabulary)
        self._rows = ref(rows), sources
        return rows

    def value_rotation(self, main_rows: int, stream_rows: int, count: int) -> ValueRotation | None:
        """Make the function that ``value_rotation`` applies to an MSA layer's values (section 3.1).

        Pairs (i, i + d/2) of stream j's values turn by ``epsilon * j``; main rows, which come
        first, stay. ``None`` for the other kinds and where there are no streams.
        """
        epsilon = self.config.value_rotation_epsilon
        if self.config.stream_init != "value_rotation" or not stream_rows:
            return None

        def rotate(values: mx.array) -> mx.array:
            main, streams = mx.split(values, [main_rows], axis=2)
            angle = epsilon * mx.tile(mx.arange(1, count + 1), (stream_rows // count,))[:, None]
            cos, sin = mx.cos(angle).astype(values.dtype), mx.sin(angle).astype(values.dtype)
            first, second = mx.split(streams, 2, axis=-1)
            rotated = [first * cos - second * sin, first * sin + second * cos]
            return mx.concatenate([main, mx.concatenate(rotated, axis=-1)], axis=2)

        return rotate

    def adapter_of(self, layer: int) -> LowRank | None:
        if not self.config.stream_adapter_rank or layer < self.config.first_msa_layer:
            return None
        return self.streams["adapters"][layer]


_BY_ROW = ("weight", "scales", "biases", "bias", "m")  # the last is DoRA's


def rows_of(head: nn.Module, ids: mx.array | slice) -> nn.Module:
    """Make a head that scores some tokens only; tensors that are not cut are shared."""
    cut = copy(head)
    for name in _BY_ROW:
        if name in cut:
            cut[name] = cut[name][ids]
    if "linear" in cut:
        cut["linear"], cut["lora_b"] = rows_of(cut["linear"], ids), cut["lora_b"][:, ids]
    if "embedding" in cut:
        cut["embedding"], cut["lora_a"] = rows_of(cut["embedding"], ids), cut["lora_a"][ids]
    return cut
