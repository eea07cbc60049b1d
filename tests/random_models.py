"""Random models in memory whose output depends on every earlier token, and drafts that know it.

A random Llama as such soon repeats one token, and then a wrong mask or position goes unnoticed. So
its attention is sharpened here. Random streams are hardly ever right, so ``Oracle`` drafts trees
that hold the true continuation among distractors.
"""

import warnings
from functools import cache, partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from tiny_models import random_streams, tiny_llama, tiny_llama_config
from trees import Planned

from specstream_mlx.adapters.lora import put_on
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.kv_quantization import KVQuantization
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.generation import sequence
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request
from specstream_mlx.hardware import device
from specstream_mlx.loading.speculative_model import SpeculativeModel
from specstream_mlx.stream_config import StreamConfig

VOCAB_SIZE = 97

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
BASES = {
    "grouped heads, tied": {},
    "one kv head, untied": {"num_key_value_heads": 1, "tie_word_embeddings": False},
    "full heads, biases": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_scaling": LLAMA3},
    "sliding windows": {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "sliding_window": 6,
    },
    "traditional linear rope, untied": {
        "rope_traditional": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "tie_word_embeddings": False,
    },
}

ADAPTER = {"stream_mlp": "adapter", "stream_adapter_rank": 4}
LINEAR = {"stream_mlp": "base+adapter", "stream_adapter_rank": 4}
LINEAR |= {"stream_init": "linear", "stream_init_rank": 3}
CONDITIONED = {**ADAPTER, "stream_head": "conditioned", "stream_head_rank": 6}
STREAMS = {
    "adapter": ADAPTER,
    "base + adapter, linear": LINEAR,
    "value rotation": {**ADAPTER, "stream_init": "value_rotation", "value_rotation_epsilon": 0.4},
    "base MLP": {},
    "one stream": {"num_streams": 1},
    "every layer": {"num_msa_layers": 4, **ADAPTER},
    "conditioned head": CONDITIONED,
    "few keys": {**ADAPTER, "stream_keys": 3},
    "conditioned head, draft vocabulary": {**CONDITIONED, "draft_vocabulary": 60},
    "draft vocabulary": {**LINEAR, "draft_vocabulary": 60},
}
PLAIN_HEADS = {
    name: fields
    for name, fields in STREAMS.items()
    if not {"stream_head", "draft_vocabulary"} & fields.keys()
}


def sharpened(model, seed=0):
    """A random model, changed so that its attention is sharp and its biases count."""
    for layer in model.layers:
        layer.self_attn.q_proj.weight *= 4
        layer.self_attn.o_proj.weight *= 2
        for module in (*layer.self_attn.values(), *layer.mlp.values()):
            if "bias" in module:
                module.bias = 0.2 * mx.random.normal(module.bias.shape, key=mx.random.key(seed))
    return model


def speculative_model(
    base="grouped heads, tied", *, mode="lossless", seed=0, sizes=None, **streams
):
    """A random base with random streams; ``streams`` are fields of ``StreamConfig``."""
    sizes = sizes or {"hidden_size": 32, "intermediate_size": 48, "vocab_size": VOCAB_SIZE}
    config = tiny_llama_config(**sizes) | BASES[base]
    model = sharpened(tiny_llama(config, seed=seed), seed)
    fields = {"num_streams": 3, "num_msa_layers": 2, "pruner_rank": 4, **streams}
    sizes = {name: config[name] for name in ("hidden_size", "num_hidden_layers")}
    adapter = random_streams(StreamConfig(mode=mode, **sizes, **fields), seed=seed + 1)
    mx.eval(model.parameters(), adapter.parameters())
    return SpeculativeModel(model, config, Path("in memory"), streams=adapter)


def put_random_lora(model, seed, keys, rank=4, scale=2.0):
    """Put random LoRA on a model, which is changed."""
    put_on(model, len(model.layers), {"rank": rank, "scale": scale, "keys": list(keys)}, dora=False)
    rng, found = np.random.default_rng(seed), tree_flatten(model.parameters())
    lora = [(n, mx.array(rng.normal(0, 0.2, p.shape), p.dtype)) for n, p in found if "lora" in n]
    model.load_weights(lora, strict=False)


def random_prompt(length, *, seed=0, vocab_size=VOCAB_SIZE):
    return np.random.default_rng(seed + 1000).integers(0, vocab_size, length).tolist()


def plain_tokens(model, prompt, count, **arguments):
    """mlx_lm's greedy continuation; ``arguments`` are further ones of ``generate_step``."""
    steps = generate_step(mx.array(prompt), model, max_tokens=count, **arguments)
    return [token for token, _ in steps]


@cache
def sequel(base, seed=1, count=70):
    """mlx_lm's continuation of ``PROMPT`` by a random base, in which streams have no say."""
    return plain_tokens(speculative_model(base, seed=seed).model, PROMPT, count)


def paired(*axes, count=0):
    """Tuples of one value of each axis, in which every value of every axis comes.

    The longest axis, or ``count``, says how many there are; further rounds pair them otherwise.
    """
    axes = [list(axis) for axis in axes]
    longest = max(map(len, axes))
    return [
        tuple(axis[(i + place * (i // longest)) % len(axis)] for place, axis in enumerate(axes))
        for i in range(max(count, longest))
    ]


def watch_layers(model, seen):
    """Keep the input and output (rows, h) of each layer of a ``BorrowedModel`` by its number."""
    layer = model.layer

    def watched(number, hidden, *further):
        output = layer(number, hidden, *further)
        seen[number] = hidden[0], output[0]
        return output

    model.layer = watched


def request(prompt, drafting, prefill_step_size=2048, **fields):
    """A ``Request`` with a quantized KV cache under mlx_lm's names."""
    names = {"kv_bits": "bits", "kv_group_size": "group_size", "quantized_kv_start": "start"}
    values = {own: fields.pop(name) for name, own in names.items() if name in fields}
    fields |= {"prefill_step_size": prefill_step_size, "quantization": KVQuantization(**values)}
    return Request(prompt, drafting, **fields)


def take(decoder, tree, placement, **settings):
    streams = {"num_streams": 0} if placement == "none" else {}
    return step_by(decoder, tree, DraftSettings(**{"tree_width": 1, **streams, **settings}))


def step_by(decoder, tree, settings, rule=None):
    plan_of = settings.plans(decoder.streams and decoder.streams.config)
    [result] = decoder.step([plan_of(tree)], [rule or VerifyRule()])
    return result


def written(model, prompt, count, drafting, **options):
    """The tokens of a request's steps, ``count`` or some more."""
    tokens, steps = [], decode(model, request(prompt, drafting, **options))
    while len(tokens) < count:
        tokens += next(steps).tokens
    steps.close()
    return tokens


def tokens_of(model, prompt, count, prefill_step_size=2048, kv_cache=None, **settings):
    options = {"prefill_step_size": prefill_step_size, **(kv_cache or {})}
    return written(model, prompt, count, DraftSettings(**settings), **options)


def assert_same_tokens(found, expected, logits_after):
    """Equality of token ids over the common length; a mismatch states how near a tie it was.

    ``logits_after``: index -> the target's (vocab,) logits before the token at that index.
    """
    for index, (token, own) in enumerate(zip(found, expected, strict=False)):
        if token == own:
            continue
        best = np.sort(np.array(logits_after(index)))[::-1]
        message = (
            f"token {index} is {token}, expected {own}; "
            f"the top two logits are {best[0]:.6f} and {best[1]:.6f}"
        )
        assert device.backend() != "cpu" and best[0] - best[1] < 1e-4, message
        warnings.warn(message, stacklevel=2)
        return


def assert_lossless(model, prompt, found, expected):
    assert_same_tokens(
        found, expected, lambda index: model(mx.array([[*prompt, *expected[:index]]]))[0, -1]
    )


def assert_close(found, expected, tolerance=1e-4):
    """max |difference| <= tolerance * max(1, max |expected|)."""
    error = relative_error(found, expected)
    assert error <= tolerance, f"relative difference {error:.2e}"


def relative_error(found, expected):
    found, expected = np.array(found, np.float64), np.array(expected, np.float64)
    assert found.shape == expected.shape
    return np.abs(found - expected).max() / max(1.0, np.abs(expected).max())


def random_tree(rng, root, *, depth=4, width=3, vocab_size=VOCAB_SIZE, truth=()):
    """A random tree in breadth-first order, of at most this depth and width; siblings differ.

    ``truth`` are tokens that one path from the root carries, at random places among its siblings.
    """
    tokens, parents, depths = [root], [-1], [0]
    level, true_node = [0], 0
    for deep in range(1, max(depth, len(truth)) + 1):
        above, on_path, level, true_node = level, true_node, [], None
        for parent in above:
            children = rng.choice(vocab_size, rng.integers(0, width + 1), replace=False).tolist()
            right = truth[deep - 1] if parent == on_path and deep <= len(truth) else None
            if right is not None:
                children = [token for token in children if token != right]
                children.insert(rng.integers(0, len(children) + 1), right)
            for token in children:
                true_node = len(tokens) if token == right else true_node
                level.append(len(tokens))
                tokens.append(token)
                parents.append(parent)
                depths.append(deep)
    shares, ends = rng.exponential(1, len(tokens)), rng.exponential(1, len(tokens))
    totals = ends + np.bincount(parents[1:], shares[1:], minlength=len(tokens))
    log_probs = np.zeros(len(tokens))
    for node, parent in enumerate(parents[1:], start=1):
        log_probs[node] = log_probs[parent] + np.log(shares[node] / totals[parent])
    arrays = (np.array(values, np.int32) for values in (tokens, parents, depths))
    return DraftTree(*arrays, log_probs)


def chain_of(tokens):
    indices = np.arange(len(tokens), dtype=np.int32)
    return DraftTree(np.array(tokens, np.int32), indices - 1, indices)


class TrueTrees:
    """Drafts random trees of any shape, in which the true path is right to a random depth."""

    def __init__(self, truth, seed, width=3, depth=4, vocab_size=VOCAB_SIZE):
        self._truth, self._rng, self._depth = truth, np.random.default_rng(seed), depth
        self._sizes = {"depth": depth, "width": width, "vocab_size": vocab_size}

    def accept(self, tokens):
        self._truth = self._truth[len(tokens) :]

    def grow(self, root, *_):
        right = self._truth[: self._rng.integers(0, self._depth + 1)]
        return random_tree(self._rng, root, truth=right, **self._sizes)


class Oracle:
    """Drafts ``TrueTrees`` in every generation once installed.

    It keeps the decoders that were made meanwhile, and the accepted path of every call, as indices
    in its tree (``paths``) and among the kept nodes (``kept_paths``).
    """

    def __init__(self, truth, *, depth=5, width=3, vocab_size=VOCAB_SIZE):
        self._trees = partial(TrueTrees, truth, 0, width, depth, vocab_size)
        self.depth, self.decoders, self.paths, self.kept_paths = depth, [], [], []

    def install(self, monkeypatch, drafts=True):
        """Watch the decoder, and draft instead of the streams unless ``drafts`` is false."""
        oracle = self

        class WatchedDecoder(Decoder):
            def __init__(self, *args, **more):
                super().__init__(*args, **more)
                oracle.decoders.append(self)

            def commit(self, paths, kept_paths):
                super().commit(paths, kept_paths)
                oracle.paths += map(list, paths)
                oracle.kept_paths += map(list, kept_paths)

        monkeypatch.setattr(sequence, "Decoder", WatchedDecoder)

        def planner(settings, model, *_):
            return Planned(oracle._trees(), settings.plans(model.guessing))

        if drafts:
            monkeypatch.setattr(sequence, "fixed_planner", planner)
        return self

    @property
    def longest(self):
        return max(map(len, self.paths))

    @property
    def gathered(self):
        """Calls whose accepted rows did not lie side by side."""
        return sum(path != list(range(len(path))) for path in self.kept_paths)


def assert_same_rows(caches, expected):
    assert [cache.offset for cache in caches] == [cache.offset for cache in expected]
    for found, own in zip(caches, expected, strict=True):
        for one, other in ((found.keys, own.keys), (found.values, own.values)):
            assert_close(one[..., : own.offset, :], other[..., : own.offset, :])


def plain_caches(model, tokens):
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([tokens]), cache=caches))
    return caches


PROMPT = random_prompt(9)


def empty_tree(model, count, prompt=PROMPT, kv_cache=None):
    """The reference of the contract: tokens of ``--no-speculation``, its logits and its caches."""
    tokens, logits = [], []
    with pytest.MonkeyPatch.context() as patch:
        watch = Oracle([]).install(patch, drafts=False)
        asked = request(prompt, DraftSettings(speculation=False), **(kv_cache or {}))
        for step in decode(model, asked):
            assert len(step.tokens) == step.tested_nodes == 1
            tokens += step.tokens
            logits.append(step.result.logits[0])
            if len(tokens) == count:
                return tokens, mx.stack(logits), watch.decoders[0].caches


TREES = {
    "no drafts": {"speculation": False},
    "no streams": {"num_streams": 0},
    "chain": {"tree_width": 1, "tree_size": None},
    "binary": {"tree_width": 2, "tree_size": None},
    "best-first": {"tree_width": 4, "tree_size": 8},
    "best-first, depth 1": {"tree_width": 5, "tree_size": 4, "num_streams": 1},
    "pruned": {"tree_width": 2, "tree_size": None, "max_nodes": 5},
    "pruned to the root": {"max_nodes": 1},
    "threshold": {"prune_threshold": 0.01},
    "likely drafts only": {"draft_threshold": 0.01},
    "pruned, threshold": {"tree_width": 3, "max_nodes": 6, "prune_threshold": 0.003},
}


def decoder_after(model, prompt, **options):
    """A decoder that holds all of ``prompt`` but its last token."""
    caches = make_caches(model.model, model.config)
    decoder = Decoder(model.model, model.streams, caches, **options)
    if len(prompt) > 1:
        decoder.prefill(mx.array(prompt[:-1]))
    return decoder


def true_tree(model, seed=0, right=2):
    truth = plain_tokens(model.model, PROMPT, right)
    return random_tree(np.random.default_rng(seed), PROMPT[-1], depth=3, width=3, truth=truth)
