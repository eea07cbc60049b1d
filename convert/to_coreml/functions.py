"""The functions of a package: prefill, step, and both halves of a step for sampling.

All of them read each state once and write it once, at the end. Integers are int32, floats that the
host sees float32.

``prefill<chunk>``: ``inputIds`` (chunk), ``length`` (1) -> ``end`` (1). Keys and values of a chunk
of prompt tokens go behind ``length`` committed rows; of a last chunk that is filled up with any
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
(gamma, paths, k), with ``candidateParents`` (gamma, paths): see ``engine.guesses.StreamGuesses``.
Without streams there is none of them.

``logits<n>``: as ``step<n>`` -> ``logits`` (n, vocab), ``streamHidden`` (n, gamma, h). The host
draws the tokens, accepts, and hands the accepted node's streams to ``draft``: ``streamHidden``
(gamma, h), and ``token`` (1), the target's own, where streams know the token before -> the guesses
of ``step<n>``.

Where adapters are supplied, all functions take ``adapter`` (elements,) float16 too: the LoRA
matrices, B scaled, and the streams' arrays, one behind the other, as ``own_arrays`` has them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import coremltools as ct
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Placeholder, Var, types

from specstream_mlx.models.streams import Streams

from .guesses import conditioned_guesses, plain_guesses
from .layers import HIDDEN, Network, Rows, Supplied, part, rope_tables, turned
from .supported import Sizes
from .weights import Constants, Store

STATES = ("keyCache", "valueCache")

ADAPTER = "adapter"
"""The input of functions to which adapters are supplied."""


@dataclass(frozen=True)
class Emission:
    """Parts that all functions of one adapter are made of.

    Attributes:
        model: an mlx-lm model with the adapter's LoRA mounted.
        streams: of the adapter, or ``None``.
        adapter: its name.
        sizes: of the package.
        store: constants of the program.
        shortlists: as the ``Decoder``'s, where streams know the token before.
        supplied: shapes of the adapter's own arrays by name, if the host supplies them.
    """

    model: nn.Module
    streams: Streams | None
    adapter: str
    sizes: Sizes
    store: Store
    shortlists: bool | None = None
    supplied: Mapping[str, tuple[int, ...]] | None = None

    def functions(self, sampling: bool = False) -> dict[str, Callable[[], Function]]:
        """Makers of the adapter's functions, by name."""
        made = {f"prefill{self.sizes.chunk}": partial(prefill, self)}
        for count in self.sizes.nodes:
            made[f"step{count}"] = partial(step, self, count)
            if sampling:
                made[f"logits{count}"] = partial(step, self, count, sampling=True)
        if sampling and self.streams is not None:
            made["draft"] = partial(draft, self)
        return {f"{self.adapter}_{name}": make for name, make in made.items()}

    def network(self) -> Network:
        """The model's parts for one more function."""
        return Network(self.model, Constants(self.store), self.adapter)


def own_arrays(emission: Emission) -> dict[str, np.ndarray]:
    """An adapter's own float16 arrays by name, in the order in which a step asks for them.

    They are taken out of the store, with what it reports of them.
    """
    step(emission, emission.sizes.nodes[0])
    return cast(dict[str, np.ndarray], emission.store.taken(f"{emission.adapter}."))


def prefill(emission: Emission) -> Function:
    """``prefill<chunk>``."""
    sizes, network = emission.sizes, emission.network()
    count = sizes.chunk
    with _function({"inputIds": (count,), "length": (1,)}, network, emission) as function:
        inputs = function.inputs
        network.supplied = _supplied(function, emission)
        length, caches = inputs["length"], _read(function)
        positions = mb.add(x=length, y=np.arange(count, dtype=np.int32))
        causal = network.constants.dense(f"causal{count}", lambda: _hidden(np.tri(count))[None])
        angles = _angles(emission, network, positions)
        rows = Rows(count, *angles, _behind(network, length, sizes), causal, count)
        x, new = network.embed(inputs["inputIds"]), []
        last = len(network.layers) - 1
        for number in range(last):
            x, keys, values = _layer(network, number, x, rows, caches)
            new.append((keys, values))
        new.append(network.keys_values(last, network.input_norm(last, x), rows))
        _write(function, caches, new, length, count)
        _outputs(function, {"end": mb.add(x=length, y=np.int32(count))})
    return function


def step(emission: Emission, count: int, sampling: bool = False) -> Function:
    """``step<n>``; ``logits<n>`` where tokens are to be sampled."""
    sizes, streams, network = emission.sizes, emission.streams, emission.network()
    shapes = {
        **dict.fromkeys(("inputIds", "positions", "parents"), (count,)),
        "ancestors": (count, count),
        **dict.fromkeys(("length", "start"), (1,)),
        "commit": (sizes.most_nodes,),
    }
    if sampling:
        del shapes["parents"]
    with _function(shapes, network, emission) as function:
        inputs = function.inputs
        network.supplied = _supplied(function, emission)
        tokens, length = inputs["inputIds"], inputs["length"]
        caches = _committed(function, sizes)
        behind = _behind(network, length, sizes)
        seen = mb.cast(x=inputs["ancestors"], dtype="fp16")
        angles = _angles(emission, network, inputs["positions"])
        rows = Rows(count, *angles, behind, _mask(seen), count)
        x, new = network.embed(tokens), []
        first = streams.config.first_msa_layer if streams else len(network.layers)
        for number in range(first):
            x, keys, values = _layer(network, number, x, rows, caches)
            new.append((keys, values))
        if streams is not None:
            beside = _Beside(network, streams, count)
            x = mb.concat(values=[x, beside.seeds(x)], axis=0)
            angles = _angles(emission, network, beside.positions(inputs["positions"]))
            rows = Rows(x.shape[0], *angles, behind, _mask(beside.sees(seen)), count)
            for number in range(first, len(network.layers)):
                x, keys, values = _layer(network, number, x, rows, caches, beside)
                new.append((keys, values))
        _write(function, caches, new, length, count)
        logits = network.logits(part(x, 0, 0, count) if streams else x)
        if streams is not None:
            gamma, h = streams.config.num_streams, x.shape[1]
            hidden = mb.reshape(x=part(x, 0, count, x.shape[0]), shape=(count, gamma, h))
        if sampling:
            found = {"logits": logits} | ({"streamHidden": hidden} if streams else {})
            found = {name: mb.cast(x=value, dtype="fp32") for name, value in found.items()}
        else:
            predictions = mb.reduce_argmax(x=logits, axis=-1, keep_dims=False)
            last = _last_accepted(tokens, inputs["parents"], seen, predictions, count)
            found = {"predictions": predictions, "last": last}
        if streams is not None and not sampling:
            hidden = mb.squeeze(x=mb.gather(x=hidden, indices=last, axis=0), axes=[0])
            token = mb.gather(x=predictions, indices=last, axis=0)
            found |= _guesses(emission, network, hidden, token)
        _outputs(function, found)
    return function


def draft(emission: Emission) -> Function:
    """``draft``."""
    assert emission.streams is not None
    config, network = emission.streams.config, emission.network()
    shape = config.num_streams, config.hidden_size
    inputs = {"streamHidden": mb.placeholder(shape=shape, dtype=types.fp32)}
    if emission.streams.head is not None:
        inputs["token"] = mb.placeholder(shape=(1,), dtype=types.int32)
    inputs |= _adapter_input(emission)
    with Function(inputs, opset_version=ct.target.iOS18) as function:
        network.supplied = _supplied(function, emission)
        hidden = mb.cast(x=function.inputs["streamHidden"], dtype="fp16")
        token = function.inputs.get("token")
        _outputs(function, _guesses(emission, network, hidden, token))
    return function


def _guesses(
    emission: Emission, network: Network, hidden: Var, token: Var | None
) -> dict[str, Var]:
    """The guesses of the streams (gamma, h) beside one node, by name of output."""
    streams, k = emission.streams, emission.sizes.candidates
    assert streams is not None
    found: tuple[Var, ...]
    if streams.head is None:
        found = plain_guesses(network, streams, hidden, k)
    else:
        shortlists = emission.shortlists
        found = conditioned_guesses(network, streams, hidden, token, k, shortlists)
    return dict(zip(("candidates", "logProbs", "candidateParents"), found, strict=False))


# Streams beside the nodes -----------------------------------------------------------------------


class _Beside:
    """The streams beside every node of a tree.

    Args:
        network: within the function.
        streams: of the adapter.
        count: nodes.
    """

    def __init__(self, network: Network, streams: Streams, count: int):
        self._network, self._streams, self._count = network, streams, count
        self._config, self._gamma = streams.config, streams.config.num_streams

    def seeds(self, main: Var) -> Var:
        """(n * gamma, h) initial streams of main rows (n, h): Eq. 4."""
        count, gamma, parts = self._count, self._gamma, self._streams.streams
        if "init" in parts:
            main = self._network.low_rank("streams.init", parts["init"], main)
        seeds = mb.tile(x=mb.expand_dims(x=main, axes=[1]), reps=(1, gamma, 1))
        if "embeddings" in parts:
            embeddings = self._network.own(
                "streams.embeddings", lambda: parts["embeddings"][None, :gamma]
            )
            seeds = mb.add(x=seeds, y=embeddings)
        return mb.reshape(x=seeds, shape=(count * gamma, main.shape[1]))

    def positions(self, main: Var) -> Var:
        """(n + n * gamma,) stream j stands j positions behind its node."""
        further = np.arange(1, self._gamma + 1, dtype=np.int32)[None]
        beside = mb.add(x=mb.expand_dims(x=main, axes=[1]), y=further)
        beside = mb.reshape(x=beside, shape=(self._count * self._gamma,))
        return mb.concat(values=[main, beside], axis=0)

    def sees(self, ancestors: Var) -> Var:
        """(rows, rows) which row sees which: Eq. 2, in shared mode Eq. 3."""
        count, gamma, config = self._count, self._gamma, self._config
        nodes = np.repeat(np.arange(count, dtype=np.int32), gamma)
        to_main = mb.gather(x=ancestors, indices=nodes, axis=0)
        own = np.eye(count)
        main_to_streams = np.repeat(own * (config.mode == "shared"), gamma, axis=1)
        among_streams = np.kron(own, np.tri(gamma))
        name = f"beside{count}x{gamma}.{config.mode}"
        to_streams = self._network.constants.dense(
            name, lambda: np.concatenate([main_to_streams, among_streams])
        )
        left = mb.concat(values=[ancestors, to_main], axis=0)
        return mb.concat(values=[left, to_streams], axis=1)

    def turn(self, values: Var) -> Var:
        """(kv_heads, rows, d) values, those of streams turned: ``value_rotation``."""
        epsilon, main = self._config.value_rotation_epsilon, self._count
        if self._config.stream_init != "value_rotation":
            return values
        angles = np.tile(epsilon * np.arange(1, self._gamma + 1), main)[:, None]
        half = values.shape[-1] // 2
        rows = main * self._gamma
        text, beside = mb.split(x=values, split_sizes=(main, rows), axis=1)
        first, second = mb.split(x=beside, split_sizes=(half, half), axis=-1)
        cos, sin = (
            self._network.constants.dense(
                f"turn{epsilon}x{self._gamma}.{name}{main}", partial(f, angles)
            )
            for name, f in (("cos", np.cos), ("sin", np.sin))
        )
        return mb.concat(values=[text, turned(first, second, cos, sin)], axis=1)

    def mlp(self, number: int, x: Var) -> Var:
        """An MSA layer's MLP over normalised rows; streams have their adapters there."""
        kind = self._config.stream_mlp
        if kind == "base":
            return self._network.mlp(number, x)
        main, rows = self._count, x.shape[0]
        adapter = self._streams.streams["adapters"][number]
        name = f"streams.adapters.{number}"
        beside = self._network.low_rank(name, adapter, part(x, 0, main, rows))
        if kind == "adapter":
            text = self._network.mlp(number, part(x, 0, 0, main))
        else:
            whole = self._network.mlp(number, x)
            text = part(whole, 0, 0, main)
            beside = mb.add(x=part(whole, 0, main, rows), y=beside)
        return mb.concat(values=[text, beside], axis=0)


def _layer(
    network: Network,
    number: int,
    x: Var,
    rows: Rows,
    caches: tuple[Var, Var],
    beside: _Beside | None = None,
) -> tuple[Var, Var, Var]:
    """One decoder layer: (rows, h), and the main rows' keys and values."""
    heads = network.kv_heads
    cache = tuple(part(c, 0, number * heads, (number + 1) * heads) for c in caches)
    turn = None if beside is None else beside.turn
    found, keys, values = network.attention(
        number, network.input_norm(number, x), rows, cache, turn
    )
    x = mb.add(x=x, y=found)
    mlp = network.mlp if beside is None else beside.mlp
    return mb.add(x=x, y=mlp(number, network.mlp_norm(number, x))), keys, values


# Verification -----------------------------------------------------------------------------------


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


# Inputs, caches and outputs ---------------------------------------------------------------------


def _function(
    shapes: Mapping[str, tuple[int, ...]], network: Network, emission: Emission
) -> Function:
    """A function of int32 inputs, and the adapter's arrays, that has the caches as states."""
    inputs = {name: mb.placeholder(shape=s, dtype=types.int32) for name, s in shapes.items()}
    inputs |= _adapter_input(emission)
    shape = len(network.layers) * network.kv_heads, emission.sizes.rows, network.head_dim
    for name in STATES:
        inputs[name] = mb.state_tensor_placeholder(shape=shape, dtype=types.fp16)
    return Function(inputs, opset_version=ct.target.iOS18)


def _adapter_input(emission: Emission) -> dict[str, Placeholder]:
    """The input for the arrays of a supplied adapter."""
    if emission.supplied is None:
        return {}
    elements = sum(math.prod(shape) for shape in emission.supplied.values())
    return {ADAPTER: mb.placeholder(shape=(elements,), dtype=types.fp16)}


def _supplied(function: Function, emission: Emission) -> Supplied | None:
    if emission.supplied is None:
        return None
    return Supplied(function.inputs[ADAPTER], emission.supplied)


def _read(function: Function) -> tuple[Var, Var]:
    """Keys and values of all layers, (layers * kv_heads, cache rows, d) each."""
    return tuple(mb.read_state(input=function.inputs[name]) for name in STATES)


def _committed(function: Function, sizes: Sizes) -> tuple[Var, Var]:
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
    """Put all layers' new keys and values behind ``length`` rows; a state is written once."""
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


def _angles(
    emission: Emission, network: Network, positions: Var
) -> tuple[tuple[Var, Var], tuple[Var, Var]]:
    """(rows, d / 2) cosines and sines at positions (rows,), for keys and, scaled, for queries.

    The tables are float32, and so is the scale, which half precision would make another one.
    """
    streams, attention = emission.streams, network.layers[0].self_attn
    count = emission.sizes.rows + (streams.config.num_streams if streams else 0)

    def tables() -> np.ndarray:
        return rope_tables(attention.rope, network.head_dim, count)

    table = network.constants.table(f"rope{count}", tables)
    found = mb.gather(x=table, indices=positions, axis=0)
    scaled = mb.mul(x=found, y=np.float32(attention.scale))
    pairs = (
        mb.split(x=mb.cast(x=both, dtype="fp16"), num_splits=2, axis=-1) for both in (found, scaled)
    )
    of_keys, of_queries = pairs
    return of_keys, of_queries


def _behind(network: Network, length: Var, sizes: Sizes) -> Var:
    """(1, 1, cache rows) mask of the rows that are not committed."""
    numbers = network.constants.integers(
        f"rows{sizes.rows}", lambda: np.arange(sizes.rows, dtype=np.int32)
    )
    seen = mb.cast(x=mb.less(x=numbers, y=length), dtype="fp16")
    return mb.reshape(x=_hidden(seen), shape=(1, 1, sizes.rows))


def _mask(sees: Var) -> Var:
    """(1, rows, rows) mask of what rows see of each other."""
    return mb.expand_dims(x=_hidden(sees), axes=[0])


def _hidden(sees: Var | np.ndarray) -> Var | np.ndarray:
    """0 where something is seen (1), else ``HIDDEN``."""
    if isinstance(sees, np.ndarray):
        return (1 - sees) * HIDDEN
    unseen = mb.sub(x=np.float16(1), y=sees)
    return mb.mul(x=unseen, y=np.float16(HIDDEN))


def _outputs(function: Function, found: Mapping[str, Var]) -> None:
    function.set_outputs([mb.identity(x=value, name=name) for name, value in found.items()])
