"""Several adapters in one pass: each sequence's logits and guesses are those of its own adapter."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from random_models import (
    STREAMS,
    paired,
    put_random_lora,
    random_prompt,
    random_tree,
    speculative_model,
)

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.errors import VOCABULARY
from specstream_mlx.models.shared_copy import shared_copy
from specstream_mlx.models.streams import Streams

KEYS = ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"]


def adapter(base, seed, scale=2.0):
    model = shared_copy(base.model)
    put_random_lora(model, seed, KEYS, rank=seed, scale=scale)
    if base.streams is None:
        return model, None
    rng, streams, own = np.random.default_rng(seed), Streams(base.streams.config), []
    for name, one in tree_flatten(base.streams.parameters()):
        noise = rng.normal(size=one.shape, scale=0.3)
        own.append((name, one + mx.array(noise, one.dtype) * (name != VOCABULARY)))
    if base.streams.vocabulary is not None:
        tokens = rng.permutation(97)[: base.streams.vocabulary.size]
        own = [(n, mx.array(np.sort(tokens), mx.int32) if n == VOCABULARY else o) for n, o in own]
    streams.load_weights(own)
    return model, streams


class Cases:
    """A sequence for each adapter: its prompt, its plan, and the step that it takes alone."""

    def __init__(self, base, adapters, shortlists=None, **settings):
        self._base, self._adapters, self._shortlists = base, adapters, shortlists
        rng, numbers = np.random.default_rng(0), range(len(adapters))
        self._prompts = [random_prompt(5 + 3 * number, seed=number) for number in numbers]
        settings = DraftSettings(tree_width=2, **settings)
        self._plans = [
            settings.plans(streams and streams.config)(
                random_tree(rng, prompt[-1], depth=3, width=2)
            )
            for (_, streams), prompt in zip(adapters, self._prompts, strict=True)
        ]
        self.expected = [self._step(self.decoder(number), [number])[0] for number in numbers]

    def decoder(self, number):
        model, streams = self._adapters[number]
        caches = make_caches(model, self._base.config)
        made = Decoder(model, streams, caches, shortlists=self._shortlists)
        made.prefill(mx.array(self._prompts[number][:-1]))
        return made

    def _step(self, decoder, numbers):
        return decoder.step([self._plans[n] for n in numbers], [VerifyRule() for _ in numbers])

    def check(self, decoder, numbers):
        for number, found in zip(numbers, self._step(decoder, numbers), strict=True):
            expected = self.expected[number]
            assert found.last.item() == expected.last.item()
            assert np.allclose(found.logits, expected.logits, atol=1e-4)
            assert (found.streams is None) == (expected.streams is None)
            if expected.streams is not None:
                candidates = np.array(expected.streams.candidates)
                assert (np.array(found.streams.candidates) == candidates).all()
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
                count=11,
            )
        ),
        *((name, "shared", {}, True) for name in CONDITIONED),
    ],
)
def test_a_step_with_other_adapters_is_that_of_the_adapter_alone(streams, mode, fields, shortlists):
    base = speculative_model(mode=mode, seed=1, **STREAMS.get(streams, {}))
    if mode == "shared" or streams is None:  # all streams run, or none
        fields = {name: value for name, value in fields.items() if name != "stream_nodes"}
    if streams is None:
        base.streams = None
    adapters = [adapter(base, seed) for seed in (2, 1, 3)]
    cases = Cases(base, [*adapters, adapters[0]], shortlists, **fields)
    first, *others = map(cases.decoder, range(4))
    for staying, joining, numbers in (
        ([0], others[:1], [0, 1]),
        ([0, 1], others[1:], [0, 1, 2, 3]),
        ([2, 0, 3], [], [2, 0, 3]),
        ([1, 2], [], [0, 3]),  # of one adapter
    ):
        first.regroup(staying, joining)
        cases.check(first, numbers)
    assert not np.allclose(cases.expected[0].logits[0], cases.expected[1].logits[0], atol=0.1)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [3, 4, 1], [5, 2]])
@pytest.mark.parametrize("streams", ["adapter", "conditioned head, draft vocabulary", "few keys"])
def test_with_shared_adapters_the_base_is_as_alone(streams, order):
    """Two shared ones, the bare base, lossless streams of other ranks, LoRA, and both of these."""
    fields = STREAMS[streams]
    base = speculative_model(mode="shared", seed=1, **fields)
    ranks = {name: value + 2 for name, value in fields.items() if name.endswith("rank")}
    lossless = speculative_model(seed=5, **fields | ranks, pruner_rank=0).streams
    every = [
        adapter(base, 1),
        adapter(base, 2),
        (base.model, None),
        (base.model, lossless),
        (adapter(base, 3)[0], None),
        (adapter(base, 4)[0], speculative_model(seed=6, **fields, pruner_rank=0).streams),
    ]
    cases = Cases(base, [every[number] for number in order], lookup=True)
    first, *others = map(cases.decoder, range(len(order)))
    everyone = [*range(len(order))]
    for staying, joining, numbers in (
        ([0], others, everyone),
        (everyone[1:], [], everyone[1:]),
        ([0], [cases.decoder(0)], [1, 0]),
    ):
        first.regroup(staying, joining)
        cases.check(first, numbers)


@pytest.mark.parametrize("kind", ["LoRA", "streams"])
def test_after_each_other_adapters_may_come_that_do_not_fit(kind):
    """Their tensors have the same names; the first has left the base when the second one comes."""
    base = speculative_model(seed=1, **STREAMS["adapter"])
    if kind == "LoRA":
        adapters = [(adapter(base, 3, scale=scale)[0], None) for scale in (2.0, 0.5)]
    else:
        ways = STREAMS["adapter"], STREAMS["adapter"] | {"stream_mlp": "base+adapter"}
        adapters = [(base.model, speculative_model(seed=5, **way).streams) for way in ways]
    cases = Cases(base, [(base.model, None), *adapters], lookup=True)
    passes = cases.decoder(0)
    for number in (1, 2):
        passes.regroup([0], [cases.decoder(number)])
        cases.check(passes, [0, number])
        passes.regroup([0])


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [0, 1, 2], [2, 0, 1], [1, 2], [3, 1, 0], [0, 3]])
def test_streams_without_tensors(order):
    """The bare base, streams that have none, with LoRA and without, and LoRA alone."""
    fields = {"stream_init": "value_rotation", "value_rotation_epsilon": 0.4, "pruner_rank": 0}
    base = speculative_model(mode="shared", seed=1, **fields)
    lossless = speculative_model(seed=5, **fields).streams
    every = [
        (base.model, None),
        adapter(base, 2),
        (base.model, lossless),
        (adapter(base, 3)[0], None),
    ]
    cases = Cases(base, [every[number] for number in order], lookup=True)
    everyone = [*range(len(order))]
    first, *others = map(cases.decoder, everyone)
    for staying, joining, numbers in (
        ([0], others, everyone),
        ([0], [], [0]),
        ([0], [cases.decoder(1)], [0, 1]),
        ([1], [cases.decoder(0)], [1, 0]),
    ):
        first.regroup(staying, joining)
        cases.check(first, numbers)
