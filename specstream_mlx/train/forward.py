"""Main stream and streams over whole sequences, as training needs them.

The positions with streams are cut into segments of c (arXiv 2402.11131, App. I), which lie on the
batch axis: a segment's streams attend to the main stream of the whole sequence and to each other,
never to another segment's. Stand-ins for the KV caches make the masks, so the layers themselves are
mlx-lm's own.

Lossless: the main stream does not depend on the streams. It runs once, without gradient, and leaves
its keys and values. Shared: rows of the prompt run first, then the completion's rows together with
their streams, since the main stream attends to these (Eq. 3).

Shapes: B sequences of T tokens, S segments of c positions, gamma streams, h hidden size.
"""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..engine.borrowed_model import BorrowedModel, model_type_of
from ..engine.key_selection import summed_weights
from ..engine.rows import Rows
from ..models.architectures import architecture_of, layer_windows
from ..models.streams import Streams, ValueRotation
from ..stream_config import StreamConfig
from .sequences import Sequences

Tree = dict[str, Any]
"""A tree of arrays, as of ``nn.Module.trainable_parameters``."""


@dataclass(frozen=True)
class Hidden:
    """Hidden states beside the positions with streams, before the final norm.

    Attributes:
        seed: (B, C, h) of the main stream at the input of the first MSA layer.
        main: (B, C, h) of the main stream after the last layer.
        streams: (B, C, gamma, h) after the last layer.
    """

    seed: mx.array
    main: mx.array
    streams: mx.array


class StreamForward:
    """A model and its streams, run over whole sequences.

    Args:
        model: an mlx-lm model, LoRA included; it is not changed.
        config: its ``config.json``.
        streams: the streams in training.
        checkpoint: whether to compute each trained layer again in the backward pass instead of
            keeping its results, to save memory; layers must not draw random numbers then.

    Attributes:
        model: the base in pieces.
        streams: see above.
        vocab_size: the base's number of tokens.

    Raises:
        UnsupportedModelError: the model cannot be run in pieces.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Mapping[str, Any],
        streams: Streams,
        checkpoint: bool = False,
    ):
        self.streams, self._layers, self._checkpoint = streams, model.layers, checkpoint
        self.vocab_size = config["vocab_size"]
        self._windows = layer_windows(config, model)
        self.model = BorrowedModel(model, streams, traced=True)
        architecture = architecture_of(model_type_of(model))
        grouped = config.get("num_key_value_heads") != config.get("num_attention_heads")
        self._group_axis = architecture.grouped_scores and grouped

    def __call__(self, sequences: Sequences) -> Hidden:
        """Run the sequences; results that are not read are never computed."""
        config = self.streams.config
        first, shared = config.first_msa_layer, config.mode == "shared"
        beside = sequences.positions.reshape(len(sequences.tokens), -1)
        main = self.model.lower(sequences.tokens, [MainRows(window) for window in self._windows], 0)
        for number in range(first):
            main, _ = self._main_rows(number, main)

        seed = _rows_at(main, beside)
        of_segments = seed.reshape(-1, sequences.positions.shape[-1], config.hidden_size)
        hidden = self.streams.seed(of_segments, config.num_streams).flatten(1, 2)
        if shared:
            main = main[:, : sequences.prompt_rows]
            hidden = mx.concatenate([of_segments, hidden], axis=1)
        windows = set(self._windows[first:])
        visibility = Visibility(sequences, config, windows, self._group_axis)
        for number in range(first, config.num_hidden_layers):
            main, rows = self._main_rows(number, main)
            hidden = self._segments(number, hidden, rows, visibility)

        if shared:
            own, hidden = mx.split(hidden, [visibility.main_rows], axis=1)
            main = own.reshape(seed.shape)
        else:
            main = _rows_at(main, beside)
        return Hidden(seed, main, hidden.reshape(*beside.shape, config.num_streams, -1))

    def _kept_or_again(self, run: Callable[..., Any], parameters: Tree) -> Callable[..., Any]:
        """``run`` with its parameters, which keeps its results or computes them again."""
        if self._checkpoint and tree_flatten(parameters):
            run = mx.checkpoint(run)
        return partial(run, parameters)

    def _main_rows(self, number: int, hidden: mx.array) -> tuple[mx.array, "MainRows"]:
        """Run a layer over main rows (B, rows, h) without streams; also returns what it cached."""
        layer, window = self._layers[number], self._windows[number]
        left = MainRows(window)
        if not hidden.shape[1]:
            return hidden, left

        def run(parameters: Tree, hidden: mx.array) -> list[mx.array]:
            layer.update(parameters)
            rows = MainRows(window)
            hidden = self.model.layer(number, hidden, rows, hidden.shape[1])
            left.softcap = rows.softcap
            return [hidden, *rows.arrays]

        again = self._kept_or_again(run, layer.trainable_parameters())
        hidden, left.keys, left.values, *asked = again(hidden)
        left.queries = asked[0] if asked else None
        return hidden, left

    def _segments(
        self, number: int, hidden: mx.array, main: "MainRows", visibility: "Visibility"
    ) -> mx.array:
        """Run one MSA layer over the rows of segments (B * S, rows, h), after its main rows."""
        config, modules = self.streams.config, {"layer": self._layers[number]}
        if (adapter := self.streams.adapter_of(number)) is not None:
            modules["adapter"] = adapter
        count, of_main = visibility.main_rows, main.arrays

        def run(parameters: Tree, hidden: mx.array, *arrays: mx.array) -> mx.array:
            for name, module in modules.items():
                module.update(parameters.get(name, {}))
            beside = hidden.shape[1] - count
            rotate = self.streams.value_rotation(count, beside, config.num_streams)
            own = main.with_arrays(list(arrays) or of_main)
            rows = SegmentRows(own, visibility, rotate, config.stream_keys)
            return self.model.layer(number, hidden, rows, count)

        parameters = {name: module.trainable_parameters() for name, module in modules.items()}
        # Lossless: nothing that is trained reaches the main rows, which so are no arguments.
        return self._kept_or_again(run, parameters)(hidden, *(of_main if count else ()))


def _rows_at(hidden: mx.array, positions: mx.array) -> mx.array:
    """Select rows (B, C, h) of ``hidden`` (B, T, h) at ``positions`` (B, C), cut to T - 1."""
    positions = mx.minimum(positions, hidden.shape[1] - 1)
    return hidden[mx.arange(len(hidden))[:, None], positions]


class MainRows:
    """A stand-in for a layer's KV cache that keeps the keys and values of main rows.

    Args:
        window: the layer's sliding window, if it has one.

    Attributes:
        offset: position of the first row.
        window: see above.
        keys, values: (B, kv_heads, rows, head_dim), once the layer has run.
        queries: (B, heads, rows, head_dim), rotated and scaled, where the layer tells them.
        softcap: cap of the layer's scores, told with them.
    """

    offset = 0

    def __init__(self, window: int | None):
        self.window = window
        self.keys: Any = None
        self.values: Any = None
        self.queries: Any = None
        self.softcap: float | None = None

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Make a causal mask, within the layer's window or, if it has none, ``window_size``."""
        window = window_size if self.window is None else self.window
        return Rows(0, None).attention_mask(count, 0, window, return_array)

    def ask(self, queries: mx.array, softcap: float | None) -> None:
        """Keep the layer's queries, where streams select keys."""
        self.queries, self.softcap = queries, softcap

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keep and return keys and values."""
        self.keys, self.values = keys, values
        return keys, values

    @property
    def arrays(self) -> list[mx.array]:
        """Keys, values and queries, as far as there are any."""
        return [a for a in (self.keys, self.values, self.queries) if a is not None]

    def with_arrays(self, arrays: list[mx.array]) -> "MainRows":
        """Copy the rows with others in place of ``arrays``."""
        rows = copy(self)
        if arrays:
            rows.keys, rows.values, *queries = arrays
            rows.queries = queries[0] if queries else None
        return rows


class Visibility:
    """Positions and visibility of the rows of segments; the same for all layers of a step.

    A segment's rows are its main rows, in shared mode, and behind them its streams position by
    position. They may see the columns of all T main rows and the segment's own streams after them.

    Args:
        sequences: the sequences of the step.
        config: the streams' configuration.
        windows: sliding windows of the layers, ``None`` for a layer without one.
        group_axis: whether masks have an axis for groups of heads too.

    Attributes:
        main_rows: number of main rows of each segment; 0 in lossless mode.
        positions: (B * S, rows) int32.
    """

    def __init__(
        self,
        sequences: Sequences,
        config: StreamConfig,
        windows: Collection[int | None],
        group_axis: bool,
    ):
        num_streams = config.num_streams
        shared = config.mode == "shared"  # the main rows see their streams (Eq. 3)
        self.sequences, self.num_streams, self._group_axis = sequences, num_streams, group_axis
        self.count = sequences.positions.shape[-1]
        self.main_rows = self.count if shared else 0
        places = sequences.positions.reshape(-1, self.count)
        ahead = mx.arange(1, num_streams + 1)
        streams = (places[..., None] + ahead).flatten(1)
        anchors = mx.repeat(places, num_streams, axis=1)
        self.positions = streams
        if shared:
            self.positions = mx.concatenate([places, streams], axis=1)
            anchors = mx.concatenate([places, anchors], axis=1)
        self._behind = anchors[..., None] - mx.arange(sequences.tokens.shape[1])
        own = self._among_streams()
        self._own = mx.broadcast_to(own, (len(anchors), *own.shape))
        self._seen = {window: self._within(window) for window in windows}

    def _among_streams(self) -> mx.array:
        """Return (rows, c * gamma) bool: the segment's streams that a row sees."""
        gamma, place = self.num_streams, mx.arange(self.count)
        of_stream, stream = mx.repeat(place, gamma), mx.tile(mx.arange(gamma), (self.count,))
        same = of_stream[:, None] == of_stream
        sees = same & (stream <= stream[:, None])
        if not self.main_rows:
            return sees
        return mx.concatenate([place[:, None] == of_stream, sees])

    def _within(self, window: int | None) -> mx.array:
        """Return (B * S, rows, T) bool: the main rows that each row sees."""
        seen = self._behind >= 0
        return seen if window is None else seen & (self._behind < window)

    def mask(self, window: int | None) -> mx.array:
        """Return the mask (B * S, 1, rows, T + c * gamma) bool, or (B * S, 1, 1, rows, ..).

        Args:
            window: a row sees main rows less than this many positions back; ``None``: all.
        """
        return self._for_heads(mx.concatenate([self._seen[window], self._own], axis=-1))

    def narrowed(self, window: int | None, weights: mx.array, count: int) -> mx.array:
        """Return the mask of a layer in which streams see the likeliest main rows alone.

        Args:
            window: see ``mask``.
            weights: (B * S, c, T) weights of main rows by each main row beside streams; -1: not
                seen.
            count: number of selected rows; ties with the last are selected too.
        """
        gamma, seen = self.num_streams, self._seen[window]
        of_streams = seen[:, self.main_rows :]
        least = mx.topk(weights, min(count, weights.shape[-1])).min(-1, keepdims=True)
        of_streams = of_streams & mx.repeat(weights >= least, gamma, axis=1)
        seen = mx.concatenate([seen[:, : self.main_rows], of_streams], axis=1)
        return self._for_heads(mx.concatenate([seen, self._own], axis=-1))

    def seen_beside(self, window: int | None) -> mx.array:
        """Return (B * S, c, T) bool: the main rows seen from the positions with streams."""
        return self._seen[window][:, self.main_rows :: self.num_streams]

    def _for_heads(self, mask: mx.array) -> mx.array:
        return mask[:, None, None] if self._group_axis else mask[:, None]

    def in_segments(self, whole: mx.array) -> mx.array:
        """Repeat (B, ..) to (B * S, ..), the same for every segment of a sequence."""
        segments = self.sequences.positions.shape[1]
        shape = len(whole), segments, *whole.shape[1:]
        return mx.broadcast_to(whole[:, None], shape).reshape(-1, *whole.shape[1:])

    def with_completion(self, prompt: mx.array | None, own: mx.array) -> mx.array:
        """Join all main rows' keys or values, in order.

        Args:
            prompt: (B, kv_heads, prompt rows, d), if there are any.
            own: (B * S, kv_heads, c, d) of the main rows with streams.

        Returns:
            (B, kv_heads, T, d); rows past a sequence's end mean nothing.
        """
        sequences = self.sequences
        batch, segments, count = sequences.positions.shape
        own = own.reshape(batch, segments, -1, count, own.shape[-1]).swapaxes(1, 2)
        own = own.reshape(batch, -1, segments * count, own.shape[-1])
        place = mx.arange(sequences.tokens.shape[1]) - sequences.first[:, None]
        before = 0
        if prompt is not None:
            before, own = prompt.shape[2], mx.concatenate([prompt, own], axis=2)
        place = mx.where(place < 0, place + sequences.first[:, None], place + before)
        place = mx.minimum(place, own.shape[2] - 1)[:, None, :, None]
        return mx.take_along_axis(own, place, axis=2)


class SegmentRows:
    """A stand-in for a layer's KV cache while the rows of segments pass.

    Args:
        main: the layer's main rows without streams.
        visibility: the visibility of the segments' rows.
        map_values: function applied to the segments' values.
        stream_keys: number of main rows that a stream attends to; 0: all.
    """

    def __init__(
        self,
        main: MainRows,
        visibility: Visibility,
        map_values: ValueRotation | None,
        stream_keys: int,
    ):
        self._main, self._visibility = main, visibility
        self._map_values, self._stream_keys = map_values, stream_keys

    @property
    def offset(self) -> mx.array:
        """Positions (B * S, rows)."""
        return self._visibility.positions

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """Return the mask of the segments' rows.

        Where streams select keys, ``update_and_fetch`` narrows it: a layer asks for it before its
        queries are known.
        """
        self._mask = self._visibility.mask(self._main.window)
        return self._mask

    def ask(self, queries: mx.array, softcap: float | None) -> None:
        """Keep the rows' queries, where streams select keys."""
        if count := self._visibility.main_rows:
            self._asked = queries[:, :, :count], softcap
        else:
            positions = self._visibility.sequences.positions
            self._asked = _beside(self._main.queries, positions), self._main.softcap

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return keys and values of the main rows and the segment's streams."""
        visibility, main = self._visibility, self._main
        if self._map_values is not None:
            values = self._map_values(values)
        main_keys, main_values = main.keys, main.values
        if count := visibility.main_rows:
            own_keys, keys = mx.split(keys, [count], axis=2)
            own_values, values = mx.split(values, [count], axis=2)
            main_keys = visibility.with_completion(main_keys, own_keys)
            main_values = visibility.with_completion(main_values, own_values)
        main_keys, main_values = map(visibility.in_segments, (main_keys, main_values))
        if self._stream_keys:
            weights = self._weights(main_keys)
            # In place, since the layer has got the mask already.
            self._mask[:] = visibility.narrowed(main.window, weights, self._stream_keys)
        return (
            mx.concatenate([main_keys, keys], axis=2),
            mx.concatenate([main_values, values], axis=2),
        )

    def _weights(self, keys: mx.array) -> mx.array:
        """Return weights (B * S, c, T) of main rows by those beside streams; -1: not seen."""
        queries, softcap = self._asked
        batch, heads, rows, size = queries.shape
        grouped = queries.reshape(batch, keys.shape[1], -1, size)
        scores = (grouped @ keys.swapaxes(2, 3)).reshape(batch, heads, rows, -1)
        seen = self._visibility.seen_beside(self._main.window)[:, None]
        return summed_weights(mx.stop_gradient(scores), seen, softcap)[:, 0]


def _beside(queries: mx.array, positions: mx.array) -> mx.array:
    """Select rows (B * S, heads, c, d) of (B, heads, T, d) at positions (B, S, c)."""
    batch, segments, count = positions.shape
    places = mx.minimum(positions.reshape(batch, -1), queries.shape[2] - 1)
    rows = queries.swapaxes(1, 2)[mx.arange(batch)[:, None], places]
    rows = rows.reshape(batch * segments, count, *rows.shape[2:])
    return rows.swapaxes(1, 2)
