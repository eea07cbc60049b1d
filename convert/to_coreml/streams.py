"""The streams of a step in MIL: their rows next to the nodes, and what they guess.

Plain streams guess k tokens each. Streams that know the token before guess depth by depth after
the k likeliest paths of the depth before, as ``engine.guess`` with ``LIKELIEST``.
"""

from functools import partial

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from specstream_mlx.engine.guess import SHORTLIST, WHOLE_HEAD
from specstream_mlx.models.streams import Streams

from .layers import Network, base_of, part, rms_norm, rotated

_EPSILON = 1e-6  # of the conditioned head's norm


class StreamRows:
    """The streams of ``count`` nodes of a tree, as rows after those of the nodes."""

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
            embeddings = self._network.adapter_array(
                "streams.embeddings", lambda: parts["embeddings"][None, :gamma]
            )
            seeds = mb.add(x=seeds, y=embeddings)
        return mb.reshape(x=seeds, shape=(count * gamma, main.shape[1]))

    def positions(self, main: Var) -> Var:
        """(n + n * gamma,) stream j stands j positions after its node."""
        further = np.arange(1, self._gamma + 1, dtype=np.int32)[None]
        of_streams = mb.add(x=mb.expand_dims(x=main, axes=[1]), y=further)
        of_streams = mb.reshape(x=of_streams, shape=(self._count * self._gamma,))
        return mb.concat(values=[main, of_streams], axis=0)

    def sees(self, ancestors: Var) -> Var:
        """(rows, rows) which row sees which: Eq. 2, in shared mode Eq. 3."""
        count, gamma, mode = self._count, self._gamma, self._config.mode
        nodes = np.repeat(np.arange(count, dtype=np.int32), gamma)
        to_main = mb.gather(x=ancestors, indices=nodes, axis=0)
        same_node = np.eye(count)
        main_to_streams = np.repeat(same_node * (mode == "shared"), gamma, axis=1)
        among_streams = np.kron(same_node, np.tri(gamma))
        to_streams = self._network.array(
            f"stream_mask{count}x{gamma}.{mode}",
            lambda: np.concatenate([main_to_streams, among_streams]),
        )
        left = mb.concat(values=[ancestors, to_main], axis=0)
        return mb.concat(values=[left, to_streams], axis=1)

    def turn(self, values: Var) -> Var:
        """(kv_heads, rows, d) values, those of streams turned: ``value_rotation``."""
        epsilon, main = self._config.value_rotation_epsilon, self._count
        if self._config.stream_init != "value_rotation":
            return values
        angles = np.tile(epsilon * np.arange(1, self._gamma + 1), main)[:, None]
        text, of_streams = mb.split(x=values, split_sizes=(main, main * self._gamma), axis=1)
        name = f"turn{epsilon}x{self._gamma}"
        cos, sin = (
            self._network.array(f"{name}.{f.__name__}{main}", partial(f, angles))
            for f in (np.cos, np.sin)
        )
        return mb.concat(values=[text, rotated(of_streams, (cos, sin))], axis=1)

    def mlp(self, number: int, x: Var) -> Var:
        """An MSA layer's MLP over normalised rows; streams have their adapters there."""
        kind, main, rows = self._config.stream_mlp, self._count, x.shape[0]
        if kind == "base":
            return self._network.mlp(number, x)
        adapter = self._streams.streams["adapters"][number]
        name = f"streams.adapters.{number}"
        of_streams = self._network.low_rank(name, adapter, part(x, 0, main, rows))
        if kind == "adapter":
            text = self._network.mlp(number, part(x, 0, 0, main))
        else:
            whole = self._network.mlp(number, x)
            text = part(whole, 0, 0, main)
            of_streams = mb.add(x=part(whole, 0, main, rows), y=of_streams)
        return mb.concat(values=[text, of_streams], axis=0)


class Guessing:
    """What the streams of one node guess: k tokens after each of k paths.

    ``shortlists`` is as the ``Decoder``'s.
    """

    def __init__(self, network: Network, streams: Streams, k: int, shortlists: bool | None):
        self._network, self._streams, self._k = network, streams, k
        self._name, self._head = network.head
        self._ids = None if streams.vocabulary is None else np.array(streams.vocabulary)
        if shortlists is None:
            drafted = streams.config.draft_vocabulary or self._head.weight.shape[0]
            shortlists = drafted > WHOLE_HEAD
        self._uses_shortlists = shortlists

    def outputs(self, hidden: Var, token: Var | None) -> dict[str, Var]:
        """The guesses of streams (gamma, h) and, where they know it, the target's token (1,)."""
        if self._streams.head is None:
            places, log_probs = self._best(self._logits(hidden))
            return {"candidates": self._tokens(places), "logProbs": log_probs}
        columns = zip(*self._levels(hidden, token), strict=True)
        names = ("candidates", "logProbs", "candidateParents")
        return {n: mb.stack(values=c, axis=0) for n, c in zip(names, columns, strict=True)}

    def _levels(
        self, hidden: Var, token: Var
    ) -> list[tuple[Var | np.ndarray, Var | np.ndarray, Var | np.ndarray]]:
        """Tokens and log-probabilities (paths, k) and parents (paths,) of each depth.

        paths is k, also at the first depth, whose one path is followed by some that are none, with
        the parent -1; of one stream it is 1.
        """
        gamma, k, before = self._streams.config.num_streams, self._k, token
        lists = self._shortlists(hidden, token) if self._uses_shortlists else None
        levels, joint, parents = [], None, np.array([-1], np.int32)
        for stream in range(gamma):
            features = self._features(part(hidden, 0, stream, stream + 1), before, stream)
            if lists is None or not stream:
                places, log_probs = self._best(self._logits(features))
            else:
                listed = mb.squeeze(x=part(lists, 0, stream, stream + 1), axes=[0])
                places, log_probs = self._best(self._logits_of(features, listed))
                places = mb.gather(x=listed, indices=places, axis=0)
            tokens = self._tokens(places)
            levels.append((tokens, log_probs, parents))
            if stream == gamma - 1:
                break
            scores = log_probs
            if joint is not None:
                scores = mb.add(x=mb.expand_dims(x=joint, axes=[1]), y=log_probs)
            count = scores.shape[0] * k
            joint, parents = mb.topk(x=mb.reshape(x=scores, shape=(count,)), k=k, axis=0)
            before = mb.gather(x=mb.reshape(x=tokens, shape=(count,)), indices=parents, axis=0)
        if gamma > 1 and k > 1:
            tokens, log_probs, _ = levels[0]
            empty, parents = np.zeros((k - 1, k)), np.full(k, -1, np.int32)
            tokens = mb.concat(values=[tokens, empty.astype(np.int32)], axis=0)
            log_probs = mb.concat(values=[log_probs, empty.astype(np.float32)], axis=0)
            levels[0] = tokens, log_probs, parents
        return levels

    def _features(self, stream_row: Var, before: Var, stream: int) -> Var:
        """(paths, h) features of one stream (1, h) after tokens (paths,): ``ConditionedHead``."""
        adapter_array, product = self._network.adapter_array, self._network.product
        head = self._streams.head
        assert head is not None
        weight, dims = head.down.weight, self._streams.config.hidden_size
        normalized = rms_norm(stream_row, _EPSILON)
        known = rms_norm(self._network.embed(before), _EPSILON)
        bias = adapter_array(f"streams.head.biases.{stream}", lambda: head.biases[stream])
        of_stream = adapter_array("streams.head.down.features", lambda: weight[:, :dims])
        of_token = adapter_array("streams.head.down.before", lambda: weight[:, dims:])
        inner = mb.add(x=product(normalized, of_stream, bias), y=product(known, of_token))
        up = adapter_array("streams.head.up", lambda: head.up.weight)
        return mb.add(x=normalized, y=product(mb.silu(x=inner), up))

    def _shortlists(self, hidden: Var, token: Var) -> Var:
        """(gamma, m) places of the likeliest tokens of each stream, as far as nothing is known."""
        rows = self._features(part(hidden, 0, 0, 1), token, 0)
        if hidden.shape[0] > 1:
            others = rms_norm(part(hidden, 0, 1, hidden.shape[0]), _EPSILON)
            rows = mb.concat(values=[rows, others], axis=0)
        logits = self._logits(rows)
        return mb.topk(x=logits, k=min(SHORTLIST, logits.shape[-1]), axis=-1)[1]

    # The LM head, of which streams may have some rows -------------------------------------------

    def _logits(self, hidden: Var) -> Var:
        """(rows, n) of rows (rows, h) after the last layer."""
        network, hidden = self._network, self._network.final_norm(hidden)
        if self._ids is None:
            return network.linear(self._name, self._head, hidden)
        bias = None
        if "bias" in self._head:
            bias = network.adapter_array(
                "streams.head_rows.bias", lambda: self._head.bias[self._streams.vocabulary]
            )
        return network.product(hidden, self._weight(), bias)

    def _logits_of(self, hidden: Var, places: Var) -> Var:
        """(rows, m) of a few tokens, by their places (m,) among the n."""
        network, hidden = self._network, self._network.final_norm(hidden)
        rows = mb.gather(x=self._weight(), indices=places, axis=0)
        product = mb.matmul(x=hidden, y=rows, transpose_y=True)
        if base_of(self._head) is self._head:
            return product
        down, up = network.lora(self._name, self._head)
        rows = mb.gather(x=up, indices=places, axis=0)
        low = network.product(hidden, down)
        return mb.add(x=product, y=mb.matmul(x=low, y=rows, transpose_y=True))

    def _weight(self) -> Var:
        """(n, h)."""
        network, module = self._network, base_of(self._head)
        if self._ids is None:
            return network.matrix(self._name, module)
        return network.rows("streams.head_rows", self._name, module, self._ids)

    def _tokens(self, places: Var) -> Var:
        """The tokens at places among the n."""
        ids = self._ids
        if ids is None:
            return places
        known = self._network.adapter_array("streams.vocabulary", lambda: ids, np.int32)
        return mb.gather(x=known, indices=places, axis=0)

    def _best(self, logits: Var) -> tuple[Var, Var]:
        """(rows, k) places of the largest of (rows, n), and their float32 log-probabilities."""
        logits = mb.cast(x=logits, dtype="fp32")
        values, places = mb.topk(x=logits, k=self._k, axis=-1)
        total = mb.reduce_log_sum_exp(x=logits, axes=[-1], keep_dims=True)
        return places, mb.sub(x=values, y=total)
