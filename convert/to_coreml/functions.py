"""The functions of a package: prefill, step, and both halves of a step for sampling.

All of them read each state once and write it once, at the end. Integers are int32, floats that the
host sees float32.

``prefill<chunk>``: ``inputIds`` (chunk), ``length`` (1) -> ``end`` (1). Keys and values of a chunk
of prompt tokens go after ``length`` committed rows; of a last chunk that is filled up with any
tokens, the host commits only the true ones, by the ``length`` of its next call.

``step<n>``: ``inputIds``, ``positions``, ``parents`` (n), ``ancestors`` (n, n), ``length``,
``start`` (1), ``commit`` (most nodes) -> ``predictions`` (n), ``last`` (1), ``candidates``,
``logProbs``. Its first act commits the accepted rows of the step before: the rows from ``start``
on are put into the order ``commit``, the accepted path first, then the others. Right after a
prefill ``start`` is ``length`` and ``commit`` is 0, 1, ... Nodes that fill up a tree have the
parent -1, see themselves alone and are never accepted. Going back is a smaller ``length``. A
prefill commits nothing: what a step has accepted and no further step has committed goes into it
again.

``candidates`` and ``logProbs`` are (gamma, k); of streams that know the token before they are
(gamma, paths, k), with ``candidateParents`` (gamma, paths): see ``engine.guess.StreamGuesses``.
Without streams there is none of them.

``logits<n>``: as ``step<n>`` -> ``logits`` (n, vocab), ``streamHidden`` (n, gamma, h). The host
draws the tokens, accepts, and hands the accepted node's streams to ``draft``: ``streamHidden``
(gamma, h), and ``token`` (1), the target's own, where streams know the token before -> the guesses
of ``step<n>``.
"""

from collections.abc import Callable, Mapping
from functools import partial

import coremltools as ct
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Var, types

from specstream_mlx.models.streams import Streams

from .layers import HIDDEN, Network, NewRows, mask, part, rope_tables
from .streams import Guessing, StreamRows
from .supported import Sizes
from .weights import WeightStore

STATES = ("keyCache", "valueCache")


class Functions:
    """The functions of one adapter, whose LoRA is mounted on an mlx-lm model.

    ``shortlists`` is as the ``Decoder``'s, where streams know the token before.
    """

    def __init__(
        self,
        model: nn.Module,
        streams: Streams | None,
        adapter: str,
        sizes: Sizes,
        store: WeightStore,
        shortlists: bool | None = None,
    ):
        self._model, self._streams, self._adapter = model, streams, adapter
        self._sizes, self._store, self._shortlists = sizes, store, shortlists

    def makers(self, sampling: bool = False) -> dict[str, Callable[[], Function]]:
        """Makers of the functions, by name."""
        made: dict[str, Callable[[], Function]] = {f"prefill{self._sizes.chunk}": self.prefill}
        for count in self._sizes.nodes:
            made[f"step{count}"] = partial(self.step, count)
            if sampling:
                made[f"logits{count}"] = partial(self.step, count, sampling=True)
        if sampling and self._streams is not None:
            made["draft"] = self.draft
        return {f"{self._adapter}_{name}": make for name, make in made.items()}

    def prefill(self) -> Function:
        sizes, network, new = self._sizes, self._network(), []
        count = sizes.chunk
        with self._function({"inputIds": (count,), "length": (1,)}, network) as function:
            length, caches = function.inputs["length"], _read(function)
            positions = mb.add(x=length, y=np.arange(count, dtype=np.int32))
            causal = network.array(f"causal{count}", lambda: (1 - np.tri(count))[None] * HIDDEN)
            committed = self._committed(network, length)
            rows = NewRows(count, *self._angles(network, positions), committed, causal, count)
            x, last = network.embed(function.inputs["inputIds"]), len(network.layers) - 1
            for number in range(last):
                x, keys, values = network.layer(number, x, rows, caches)
                new.append((keys, values))
            new.append(network.keys_values(last, network.input_norm(last, x), rows))
            _write(function, caches, new, length, count)
            _outputs(function, {"end": mb.add(x=length, y=np.int32(count))})
        return function

    def step(self, count: int, sampling: bool = False) -> Function:
        """``step<n>``; ``logits<n>`` where tokens are to be sampled."""
        streams, network, new = self._streams, self._network(), []
        shapes = {
            **dict.fromkeys(("inputIds", "positions", "parents"), (count,)),
            "ancestors": (count, count),
            **dict.fromkeys(("length", "start"), (1,)),
            "commit": (self._sizes.most_nodes,),
        }
        if sampling:
            del shapes["parents"]
        with self._function(shapes, network) as function:
            inputs = function.inputs
            tokens, length = inputs["inputIds"], inputs["length"]
            caches = _in_order(function, self._sizes)
            committed = self._committed(network, length)
            sees = mb.cast(x=inputs["ancestors"], dtype="fp16")
            angles = self._angles(network, inputs["positions"])
            among = mb.expand_dims(x=mask(sees), axes=[0])
            rows = NewRows(count, *angles, committed, among, count)
            x, stream_rows = network.embed(tokens), None
            for number in range(len(network.layers)):
                if streams is not None and number == streams.config.first_msa_layer:
                    stream_rows = StreamRows(network, streams, count)
                    x = mb.concat(values=[x, stream_rows.seeds(x)], axis=0)
                    angles = self._angles(network, stream_rows.positions(inputs["positions"]))
                    among = mb.expand_dims(x=mask(stream_rows.sees(sees)), axes=[0])
                    rows = NewRows(x.shape[0], *angles, committed, among, count)
                x, keys, values = network.layer(number, x, rows, caches, stream_rows)
                new.append((keys, values))
            _write(function, caches, new, length, count)
            logits = network.logits(part(x, 0, 0, count) if streams else x)
            if streams is not None:
                shape = (count, streams.config.num_streams, x.shape[1])
                hidden = mb.reshape(x=part(x, 0, count, x.shape[0]), shape=shape)
            if sampling:
                outputs = {"logits": logits} | ({"streamHidden": hidden} if streams else {})
                outputs = {name: mb.cast(x=value, dtype="fp32") for name, value in outputs.items()}
            else:
                predictions = mb.reduce_argmax(x=logits, axis=-1, keep_dims=False)
                last = _last_accepted(tokens, inputs["parents"], sees, predictions, count)
                outputs = {"predictions": predictions, "last": last}
            if streams is not None and not sampling:
                hidden = mb.squeeze(x=mb.gather(x=hidden, indices=last, axis=0), axes=[0])
                token = mb.gather(x=predictions, indices=last, axis=0)
                outputs |= self._guesses(network, streams, hidden, token)
            _outputs(function, outputs)
        return function

    def draft(self) -> Function:
        streams, network = self._streams, self._network()
        assert streams is not None
        shape = streams.config.num_streams, streams.config.hidden_size
        inputs = {"streamHidden": mb.placeholder(shape=shape, dtype=types.fp32)}
        if streams.head is not None:
            inputs["token"] = mb.placeholder(shape=(1,), dtype=types.int32)
        with Function(inputs, opset_version=ct.target.iOS18) as function:
            hidden = mb.cast(x=function.inputs["streamHidden"], dtype="fp16")
            token = function.inputs.get("token")
            _outputs(function, self._guesses(network, streams, hidden, token))
        return function

    # Parts ----------------------------------------------------------------------------------

    def _network(self) -> Network:
        return Network(self._model, self._store, self._adapter)

    def _function(self, shapes: Mapping[str, tuple[int, ...]], network: Network) -> Function:
        """A function of int32 inputs that has the caches as states."""
        inputs = {name: mb.placeholder(shape=s, dtype=types.int32) for name, s in shapes.items()}
        shape = len(network.layers) * network.kv_heads, self._sizes.rows, network.head_dim
        for name in STATES:
            inputs[name] = mb.state_tensor_placeholder(shape=shape, dtype=types.fp16)
        return Function(inputs, opset_version=ct.target.iOS18)

    def _guesses(
        self, network: Network, streams: Streams, hidden: Var, token: Var | None
    ) -> dict[str, Var]:
        guesses = Guessing(network, streams, self._sizes.candidates, self._shortlists)
        return guesses.outputs(hidden, token)

    def _angles(self, network: Network, positions: Var) -> tuple[tuple[Var, Var], tuple[Var, Var]]:
        """(rows, d / 2) cosines and sines at positions (rows,), for keys and, scaled, for queries.

        The tables are float32, and so is the scale, which half precision would make another one.
        """
        streams, attention = self._streams, network.attention
        count = self._sizes.rows + (streams.config.num_streams if streams else 0)
        table = network.array(
            f"rope{count}",
            lambda: rope_tables(attention.rope, network.head_dim, count),
            np.float32,
        )
        rotated = mb.gather(x=table, indices=positions, axis=0)
        scaled = mb.mul(x=rotated, y=np.float32(attention.scale))
        of_keys, of_queries = (
            mb.split(x=mb.cast(x=both, dtype="fp16"), num_splits=2, axis=-1)
            for both in (rotated, scaled)
        )
        return of_keys, of_queries

    def _committed(self, network: Network, length: Var) -> Var:
        """(1, 1, cache rows) mask of the rows that are not committed."""
        count = self._sizes.rows
        numbers = network.array(f"rows{count}", lambda: np.arange(count), np.int32)
        sees = mb.cast(x=mb.less(x=numbers, y=length), dtype="fp16")
        return mb.reshape(x=mask(sees), shape=(1, 1, count))


def _last_accepted(tokens: Var, parents: Var, ancestors: Var, predictions: Var, count: int) -> Var:
    """(1,) the last accepted node: it and its ancestors are what was predicted before them.

    Siblings differ, so accepted nodes are one path, whose last node has the largest number.
    """
    before = mb.gather(x=predictions, indices=mb.maximum(x=parents, y=np.int32(0)), axis=0)
    has_parent = mb.greater_equal(x=parents, y=np.int32(0))
    right = mb.logical_and(x=mb.equal(x=tokens, y=before), y=has_parent)
    right = mb.logical_or(x=right, y=np.arange(count) == 0)
    wrong = mb.cast(x=mb.logical_not(x=right), dtype="fp16")
    above = mb.matmul(x=ancestors, y=mb.expand_dims(x=wrong, axes=[1]))
    accepted = mb.cast(x=mb.equal(x=above, y=np.float16(0)), dtype="int32")
    numbers = mb.mul(x=mb.squeeze(x=accepted, axes=[1]), y=np.arange(count, dtype=np.int32))
    return mb.reduce_max(x=numbers, axes=[0], keep_dims=True)


def _read(function: Function) -> tuple[Var, Var]:
    """Keys and values of all layers, (layers * kv_heads, cache rows, d) each."""
    return tuple(mb.read_state(input=function.inputs[name]) for name in STATES)


def _in_order(function: Function, sizes: Sizes) -> tuple[Var, Var]:
    """The same after the rows that the step before wrote are in the order of ``commit``."""
    start, order = function.inputs["start"], function.inputs["commit"]
    chosen = mb.add(x=start, y=order)
    return tuple(
        _put(cache, mb.gather(x=cache, indices=chosen, axis=1), start, sizes.most_nodes)
        for cache in _read(function)
    )


def _write(
    function: Function,
    caches: tuple[Var, Var],
    new: list[tuple[Var, Var]],
    length: Var,
    count: int,
) -> None:
    """Put all layers' new keys and values after ``length`` rows; a state is written once."""
    for name, cache, rows in zip(STATES, caches, zip(*new, strict=True), strict=True):
        written = _put(cache, mb.concat(values=list(rows), axis=0), length, count)
        mb.coreml_update_state(state=function.inputs[name], value=written)


def _put(cache: Var, rows: Var, begin: Var, count: int) -> Var:
    """A cache with ``count`` rows from ``begin`` (1,) on replaced."""
    heads, _, size = cache.shape
    front, back = np.array([0], np.int32), np.array([size], np.int32)
    first = mb.concat(values=[front, begin, front], axis=0)
    end = mb.add(x=begin, y=np.int32(count))
    last = mb.concat(values=[np.array([heads], np.int32), end, back], axis=0)
    return mb.slice_update(x=cache, update=rows, begin=first, end=last)


def _outputs(function: Function, outputs: Mapping[str, Var]) -> None:
    function.set_outputs([mb.identity(x=value, name=name) for name, value in outputs.items()])
