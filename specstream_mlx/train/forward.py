"""Main stream and streams over whole sequences, as training needs them.

The positions with streams are cut into segments of c (arXiv 2402.11131, App. I), which lie on the
batch axis: a segment's streams attend to the main stream of the whole sequence and to each other.
Stand-ins for the KV caches make the masks, so the layers themselves are mlx-lm's own.

Lossless: the main stream runs once, without gradient, and leaves its keys and values. Shared: rows
of the prompt run first, then the completion's rows with their streams, since the main stream
attends to these (Eq. 3).

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

from ..engine.borrowed_model import BorrowedModel
from ..engine.key_selection import summed_weights
from ..engine.rows import Rows
from ..models.architectures import architecture_of, layer_windows
from ..models.streams import Streams
from ..stream_config import StreamConfig
from .sequences import Sequences


@dataclass(frozen=True)
class Hidden:
    """Hidden states at the positions with streams, before the final norm."""

    seed: mx.array  # (B, C, h) of the main stream at the input of the first MSA layer
    main: mx.array  # (B, C, h) of the main stream
    streams: mx.array  # (B, C, gamma, h)


class StreamForward:
    """An mlx-lm model, LoRA included, and its streams, run over whole sequences.

    With ``checkpoint`` each trained layer is computed again in the backward pass, to save memory;
    layers must not draw random numbers then.
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
        self.model = BorrowedModel(model, streams, traced=True, checkpointed=True)
        grouped = config.get("num_key_value_heads") != config.get("num_attention_heads")
        architecture = architecture_of(getattr(model, "model_type", None))
        self._group_axis = architecture.grouped_scores and grouped

    def __call__(self, sequences: Sequences) -> Hidden:
        """Run the sequences; results that are never read are never computed."""
        config = self.streams.config
        first, shared = config.first_msa_layer, config.mode == "shared"
        positions = sequences.positions.reshape(len(sequences.tokens), -1)
        main = self.model.lower(sequences.tokens, [MainRows(window) for window in self._windows], 0)
        for number in range(first):
            main, _ = self._main_rows(number, main)

        seed = _rows_at(main, positions)
        of_segments = seed.reshape(-1, sequences.positions.shape[-1], config.hidden_size)
        hidden = self.streams.seed(of_segments, config.num_streams).flatten(1, 2)
        if shared:
            main = main[:, : sequences.prompt_rows]
            hidden = mx.concatenate([of_segments, hidden], axis=1)
        visibility = Visibility(sequences, config, self._windows[first:], self._group_axis)
        for number in range(first, config.num_hidden_layers):
            main, rows = self._main_rows(number, main)
            hidden = self._segments(number, hidden, rows, visibility)

        if shared:
            main_rows, hidden = mx.split(hidden, [visibility.main_rows], axis=1)
            main = main_rows.reshape(seed.shape)
        else:
            main = _rows_at(main, positions)
        return Hidden(seed, main, hidden.reshape(*positions.shape, config.num_streams, -1))

    def _again(self, run: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
        """Give ``run`` its parameters; with checkpoints its results are computed again."""
        if self._checkpoint and tree_flatten(parameters):
            run = mx.checkpoint(run)
        return partial(run, parameters)

    def _main_rows(self, number: int, hidden: mx.array) -> tuple[mx.array, "MainRows"]:
        """Run a layer over main rows (B, rows, h) without streams; also returns what it cached."""
        layer, left = self._layers[number], MainRows(self._windows[number])
        if not hidden.shape[1]:
            return hidden, left

        def run(parameters: dict[str, Any], hidden: mx.array) -> list[mx.array]:
            layer.update(parameters)
            rows = MainRows(left.window)
            hidden = self.model.layer(number, hidden, rows, hidden.shape[1])
            left.softcap = rows.softcap
            return [hidden, *rows.arrays]

        hidden, *arrays = self._again(run, layer.trainable_parameters())(hidden)
        return hidden, left.having(arrays)

    def _segments(
        self, number: int, hidden: mx.array, main: "MainRows", visibility: "Visibility"
    ) -> mx.array:
        """Run one MSA layer over the rows of segments (B * S, rows, h), after its main rows."""
        modules = {"layer": self._layers[number]}
        if (adapter := self.streams.adapter_of(number)) is not None:
            modules["adapter"] = adapter
        count, of_main = visibility.main_rows, main.arrays

        def run(parameters: dict[str, Any], hidden: mx.array, *arrays: mx.array) -> mx.array:
            for name, module in modules.items():
                module.update(parameters.get(name, {}))
            rows = SegmentRows(main.having(arrays or of_main), visibility, self.streams)
            return self.model.layer(number, hidden, rows, count)

        parameters = {name: module.trainable_parameters() for name, module in modules.items()}
        # Lossless: nothing that is trained reaches the main rows, which so are no arguments.
        return self._again(run, parameters)(hidden, *(of_main if count else ()))


def _rows_at(hidden: mx.array, positions: mx.array) -> mx.array:
    """Select rows (B, C, ..) of ``hidden`` (B, T, ..) at ``positions`` (B, C), cut to T - 1."""
    positions = mx.minimum(positions, hidden.shape[1] - 1)
    return hidden[mx.arange(len(hidden))[:, None], positions]


class MainRows:
    """A stand-in for a layer's KV cache that stores what the layer has of main rows.

    ``arrays`` are keys and values (B, kv_heads, rows, head_dim) and, where streams select keys,
    queries (B, heads, rows, head_dim), rotated and scaled, whose scores ``softcap`` caps.
    """

    offset = 0

    def __init__(self, window: int | None):
        self.window = window
        self.arrays: list[mx.array] = []
        self.softcap: float | None = None

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Make a causal mask."""
        window = window_size if self.window is None else self.window
        return Rows(0, None).attention_mask(count, 0, window, return_array)

    def ask(self, queries: mx.array, softcap: float | None) -> None:
        """Keep the layer's queries, where streams select keys."""
        self.arrays, self.softcap = [queries], softcap

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keep and return keys and values."""
        self.arrays = [keys, values, *self.arrays]
        return keys, values

    def having(self, arrays: Collection[mx.array]) -> "MainRows":
        """Copy with other ``arrays``."""
        rows = copy(self)
        rows.arrays = list(arrays)
        return rows


class Visibility:
    """Positions and visibility of the rows of segments; the same for all layers of a step.

    A segment's rows are its main rows, in shared mode, and then its streams position by position.
    They see, by window, ``seen`` (B * S, rows, T) of all main rows and ``sees_streams`` (B * S,
    rows, c * gamma) of the segment's streams.
    """

    def __init__(
        self,
        sequences: Sequences,
        config: StreamConfig,
        windows: Collection[int | None],
        group_axis: bool,
    ):
        self.sequences, self.num_streams = sequences, config.num_streams
        self._group_axis = group_axis
        count, gamma = sequences.positions.shape[-1], config.num_streams
        places = sequences.positions.reshape(-1, count)
        place, stream = mx.arange(count), mx.tile(mx.arange(gamma), (count,))
        of_stream = mx.repeat(place, gamma)
        self.main_rows = 0
        self.positions = (places[..., None] + mx.arange(1, gamma + 1)).flatten(1)
        anchors = mx.repeat(places, gamma, axis=1)
        sees_streams = (of_stream[:, None] == of_stream) & (stream <= stream[:, None])
        if config.mode == "shared":  # the main rows see their streams (Eq. 3)
            self.main_rows = count
            self.positions = mx.concatenate([places, self.positions], axis=1)
            anchors = mx.concatenate([places, anchors], axis=1)
            sees_streams = mx.concatenate([place[:, None] == of_stream, sees_streams])
        self.sees_streams = mx.broadcast_to(sees_streams, (len(anchors), *sees_streams.shape))
        back = anchors[..., None] - mx.arange(sequences.tokens.shape[1])
        self.seen = {
            window: (back >= 0) if window is None else (back >= 0) & (back < window)
            for window in set(windows)
        }

    def mask(self, window: int | None, likeliest: mx.array | None = None) -> mx.array:
        """Return the mask (B * S, 1, rows, T + c * gamma) bool, or (B * S, 1, 1, rows, ..).

        Of the main rows streams see the ``likeliest`` (B * S, c, T) alone, where there are some.
        """
        seen = self.seen[window]
        if likeliest is not None:
            main, streams = mx.split(seen, [self.main_rows], axis=1)
            streams = streams & mx.repeat(likeliest, self.num_streams, axis=1)
            seen = mx.concatenate([main, streams], axis=1)
        mask = mx.concatenate([seen, self.sees_streams], axis=-1)
        return mask[:, None, None] if self._group_axis else mask[:, None]

    def in_segments(self, whole: mx.array) -> mx.array:
        """Repeat (B, ..) to (B * S, ..), the same for every segment of a sequence."""
        segments = self.sequences.positions.shape[1]
        shape = len(whole), segments, *whole.shape[1:]
        return mx.broadcast_to(whole[:, None], shape).reshape(-1, *whole.shape[1:])

    def with_completion(self, prompt: mx.array | None, rows: mx.array) -> mx.array:
        """Join main rows' keys or values in order, to (B, kv_heads, T, d).

        ``rows`` (B * S, kv_heads, c, d) are of rows with streams. What is past a sequence's end
        means nothing.
        """
        sequences = self.sequences
        batch, segments, count = sequences.positions.shape
        rows = rows.reshape(batch, segments, -1, count, rows.shape[-1]).swapaxes(1, 2)
        rows = rows.reshape(batch, -1, segments * count, rows.shape[-1])
        first, before = sequences.positions[:, 0, :1], 0
        if prompt is not None:
            before, rows = prompt.shape[2], mx.concatenate([prompt, rows], axis=2)
        place = mx.arange(sequences.tokens.shape[1])
        place = mx.where(place < first, place, place - first + before)
        place = mx.minimum(place, rows.shape[2] - 1)[:, None, :, None]
        return mx.take_along_axis(rows, place, axis=2)


class SegmentRows:
    """A stand-in for a layer's KV cache while the rows of segments pass, after its main rows."""

    def __init__(self, main: MainRows, visibility: Visibility, streams: Streams):
        self._main, self._visibility, self._streams = main, visibility, streams

    @property
    def offset(self) -> mx.array:
        """Positions (B * S, rows)."""
        return self._visibility.positions

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """Return a mask, which ``update_and_fetch`` may narrow."""
        self._mask = self._visibility.mask(self._main.window)
        return self._mask

    def ask(self, queries: mx.array, softcap: float | None) -> None:
        """Keep the queries of main rows with streams, where these select keys."""
        count, positions = self._visibility.main_rows, self._visibility.sequences.positions
        self._softcap = softcap if count else self._main.softcap
        if count:
            self._queries = queries[:, :, :count]
            return
        batch, segments, count = positions.shape
        rows = _rows_at(self._main.arrays[2].swapaxes(1, 2), positions.reshape(batch, -1))
        rows = rows.reshape(batch * segments, count, *rows.shape[2:])
        self._queries = rows.swapaxes(1, 2)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return keys and values of the main rows and the segment's streams."""
        visibility, config = self._visibility, self._streams.config
        count = visibility.main_rows
        rotate = self._streams.value_rotation(count, keys.shape[2] - count, config.num_streams)
        if rotate is not None:
            values = rotate(values)
        both: Any = keys, values
        main: Any = self._main.arrays[:2] or (None, None)
        if count:
            completion, both = zip(*(mx.split(rows, [count], axis=2) for rows in both), strict=True)
            main = map(visibility.with_completion, main, completion)
        main_keys, main_values = map(visibility.in_segments, main)
        if config.stream_keys:
            weights = self._weights(main_keys)
            least = mx.topk(weights, min(config.stream_keys, weights.shape[-1]))
            likeliest = weights >= least.min(-1, keepdims=True)
            # In place: a layer asks for its mask before its queries are known.
            self._mask[:] = visibility.mask(self._main.window, likeliest)
        keys, values = both
        return mx.concatenate([main_keys, keys], 2), mx.concatenate([main_values, values], 2)

    def _weights(self, keys: mx.array) -> mx.array:
        """Return weights (B * S, c, T) of main rows by those with streams; -1: not seen."""
        batch, heads, rows, size = self._queries.shape
        grouped = self._queries.reshape(batch, keys.shape[1], -1, size)
        scores = (grouped @ keys.swapaxes(2, 3)).reshape(batch, heads, rows, -1)
        visibility = self._visibility
        seen = visibility.seen[self._main.window][:, visibility.main_rows :: visibility.num_streams]
        return summed_weights(mx.stop_gradient(scores), seen[:, None], self._softcap)[:, 0]
