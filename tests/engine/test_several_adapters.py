"""Several adapters in one pass: each sequence's logits and guesses are those of its own adapter."""

from copy import copy

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from random_models import STREAMS, paired, random_prompt, random_tree, speculative_model

from specstream_mlx.adapters.lora import put_on
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.several_adapters import layout_of
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.verify.by_name import find_rule
from specstream_mlx.errors import VOCABULARY
from specstream_mlx.models.streams import Streams
from specstream_mlx.models.twin import twin

KEYS = ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"]


def adapter(base, seed, rank=None, keys=KEYS, scale=2.0):
    """(model, streams) of the base with random LoRA and other random streams."""
    rng = np.random.default_rng(seed)
    model = twin(base.model)
    put_on(model, 4, {"rank": rank or seed, "scale": scale, "keys": keys}, dora=False)
    tensors = tree_flatten(model.parameters())
    lora = [
        (name, mx.array(rng.normal(size=one.shape, scale=0.2), one.dtype))
        for name, one in tensors
        if "lora" in name
    ]
    model.load_weights(lora, strict=False)
    if base.streams is None:
        return model, None
    streams, own = Streams(base.streams.config), []
    for name, one in tree_flatten(base.streams.parameters()):
        noise = rng.normal(size=one.shape, scale=0.3)
        own.append((name, one + mx.array(noise, one.dtype) * (name != VOCABULARY)))
    if base.streams.vocabulary is not None:
        tokens = rng.permutation(97)[: base.streams.vocabulary.size]
        own = [(n, mx.array(np.sort(tokens), mx.int32) if n == VOCABULARY else o) for n, o in own]
    streams.load_weights(own)
    return model, streams


def decoder(base, adapter, prompt, shortlists=None):
    model, streams = adapter
    made = Decoder(model, streams, make_caches(model, base.config), shortlists=shortlists)
    made.prefill(mx.array(prompt[:-1]))
    return made


def assert_same(found, expected):
    assert found.last.item() == expected.last.item()
    assert np.allclose(found.logits, expected.logits, atol=1e-4)
    if expected.streams is not None:
        assert (np.array(found.streams.candidates) == np.array(expected.streams.candidates)).all()
        assert np.allclose(found.streams.log_probs, expected.streams.log_probs, atol=1e-4)


CONDITIONED = [name for name in STREAMS if "conditioned" in name]


@pytest.mark.parametrize(
    ("streams", "mode", "fields", "shortlists"),
    [
        *(
            (*case, None)
            for case in paired(
                [None, *STREAMS],
                ["shared", "lossless"],
                [{}, {"stream_nodes": 2}, {"max_nodes": 4, "prune_threshold": 1e-3}],
                count=20,
            )
        ),
        *((name, "shared", {}, True) for name in CONDITIONED),
    ],
)
def test_a_step_beside_other_adapters_is_that_of_the_adapter_alone(
    streams, mode, fields, shortlists
):
    base = speculative_model(mode=mode, seed=1, **STREAMS.get(streams, {}))
    if mode == "shared" or streams is None:  # all streams run, or none
        fields = {name: value for name, value in fields.items() if name != "stream_nodes"}
    if streams is None:
        base.streams = None
    plan_of = DraftSettings(tree_width=2, **fields).plans(base.streams and base.streams.config)
    adapters = [adapter(base, seed) for seed in (2, 1, 3)]
    order = [0, 1, 2, 0]
    prompts = [random_prompt(5 + 3 * number, seed=number) for number in range(4)]
    rng = np.random.default_rng(0)
    plans = [plan_of(random_tree(rng, prompt[-1], depth=3, width=2)) for prompt in prompts]
    rules = [find_rule(None, None)(None, None, prompt) for prompt in prompts]

    def decoders():
        pairs = zip(order, prompts, strict=True)
        return [decoder(base, adapters[n], prompt, shortlists) for n, prompt in pairs]

    expected = [
        one.step([plan], [rule])[0]
        for one, plan, rule in zip(decoders(), plans, rules, strict=True)
    ]
    first, *others = decoders()
    for kept, joining, seated in (
        ([0], others[:1], [0, 1]),
        ([0, 1], others[1:], [0, 1, 2, 3]),
        ([2, 0, 3], [], [2, 0, 3]),
        ([1, 2], [], [0, 3]),  # of one adapter
    ):
        first.seat(kept, joining)
        found = first.step([plans[n] for n in seated], [rules[n] for n in seated])
        for number, one in zip(seated, found, strict=True):
            assert_same(one, expected[number])
    assert not np.allclose(expected[0].logits[0], expected[1].logits[0], atol=0.1)


def company(streams):
    """(base, adapters): two shared, the bare base, lossless streams of other ranks, LoRA, both."""
    fields = STREAMS[streams]
    base = speculative_model(mode="shared", seed=1, **fields)
    shared, lora = adapter(base, 1), adapter(base, 3)[0]
    ranks = {name: value + 2 for name, value in fields.items() if name.endswith("rank")}
    lossless = speculative_model(seed=5, **fields | ranks, pruner_rank=0).streams
    bare = base.model
    both = adapter(base, 4)[0], speculative_model(seed=6, **fields, pruner_rank=0).streams
    return base, [shared, adapter(base, 2), (bare, None), (bare, lossless), (lora, None), both]


@pytest.mark.parametrize(
    "order", [[0, 1, 2, 3, 4, 5], [2, 0, 3], [3, 4, 1], [5, 2], [4, 3], [5, 3]]
)
@pytest.mark.parametrize("streams", ["adapter", "conditioned head, draft vocabulary", "few keys"])
def test_beside_shared_adapters_the_base_is_as_alone(streams, order):
    base, adapters = company(streams)
    prompts = [random_prompt(5 + 3 * number, seed=number) for number in order]
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, prompt[-1], depth=3, width=2) for prompt in prompts]
    settings = DraftSettings(tree_width=2, lookup=True)
    configs = [adapters[n][1] and adapters[n][1].config for n in order]
    plans = [settings.plans(config)(tree) for config, tree in zip(configs, trees, strict=True)]
    rules = [find_rule(None, None)(None, None, prompt) for prompt in prompts]

    def decoders():
        pairs = zip(order, prompts, strict=True)
        return [decoder(base, adapters[n], prompt) for n, prompt in pairs]

    expected = [
        one.step([plan], [rule])[0]
        for one, plan, rule in zip(decoders(), plans, rules, strict=True)
    ]
    first, *others = decoders()
    everyone = [*range(len(order))]
    for kept, joining, seated in (
        ([0], others, everyone),
        (everyone[1:], [], everyone[1:]),
        ([0], decoders()[:1], [1, 0]),
    ):
        first.seat(kept, joining)
        found = first.step([plans[n] for n in seated], [rules[n] for n in seated])
        for number, one in zip(seated, found, strict=True):
            assert_same(one, expected[number])
            assert (one.streams is None) == (expected[number].streams is None)


@pytest.mark.parametrize("kind", ["LoRA", "streams"])
def test_beside_the_base_adapters_follow_that_do_not_fit_each_other(kind):
    """Their tensors have the same names; the first has left when the second one comes."""
    base = speculative_model(seed=1, **STREAMS["adapter"])
    if kind == "LoRA":
        adapters = [(adapter(base, 3, scale=scale)[0], None) for scale in (2.0, 0.5)]
    else:
        ways = STREAMS["adapter"], STREAMS["adapter"] | {"stream_mlp": "base+adapter"}
        adapters = [(base.model, speculative_model(seed=5, **way).streams) for way in ways]
    adapters.append((base.model, None))
    prompts = [random_prompt(5, seed=number) for number in range(3)]
    rng = np.random.default_rng(0)
    plans, rules, expected = [], [], []
    for (_, streams), prompt in zip(adapters, prompts, strict=True):
        plan_of = DraftSettings(tree_width=2, lookup=True).plans(streams and streams.config)
        plans.append(plan_of(random_tree(rng, prompt[-1], depth=3, width=2)))
        rules.append(find_rule(None, None)(None, None, prompt))
    for one, prompt, plan, rule in zip(adapters, prompts, plans, rules, strict=True):
        expected += decoder(base, one, prompt).step([plan], [rule])
    passes = decoder(base, adapters[2], prompts[2])
    for number in (0, 1):
        passes.seat([0], [decoder(base, adapters[number], prompts[number])])
        found = passes.step([plans[2], plans[number]], [rules[2], rules[number]])
        assert_same(found[0], expected[2])
        assert_same(found[1], expected[number])
        passes.seat([0])


def test_layouts():
    base = speculative_model(mode="shared", **STREAMS["adapter"])
    own = layout_of(*adapter(base, 1))
    assert own.fits(layout_of(*adapter(base, 2)))
    assert not own.fits(layout_of(*adapter(base, 2, keys=KEYS[:2])))
    assert not own.fits(layout_of(*adapter(base, 2, scale=1.0)))
    for streams in (None, base.streams, speculative_model(**STREAMS["adapter"]).streams):
        bare = layout_of(twin(base.model), streams)
        assert own.fits(bare) and bare.fits(own)
    strange = speculative_model(mode="shared", num_streams=2, **STREAMS["adapter"]).streams
    assert not own.fits(layout_of(twin(base.model), strange))
    other = copy(base)
    other.model = speculative_model(seed=2).model
    assert not own.fits(layout_of(*adapter(other, 1)))
    embedding = [adapter(base, 2, keys=["model.embed_tokens"]) for _ in range(2)]
    first, second = (layout_of(*one) for one in embedding)
    assert first.fits(first) and not first.fits(second)


def test_a_layout_is_read_once_for_each_adapter():
    model = speculative_model(mode="shared", **STREAMS["adapter"])
    found = model.layout
    assert model.layout is found
    model.swap_adapter(None)
    assert model.layout is not found
