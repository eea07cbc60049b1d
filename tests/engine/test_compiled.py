"""Compiled steps compute what steps do that Python builds; their traces are few."""

import gc
import shutil
import weakref

import mlx.core as mx
import pytest
from random_models import PROMPT, assert_close, request, speculative_model
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import DraftSettings, batch_generate, load
from specstream_mlx.drafting.fixed import FixedPlanner
from specstream_mlx.engine import compiled
from specstream_mlx.engine.compiled import TRACED_AT, room_for
from specstream_mlx.engine.sampling import keyed_sampler
from specstream_mlx.generation.batch import decode
from specstream_mlx.hardware import device

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="for a CPU mx.compile needs a C++ compiler: no g++ here"
)

WAYS = {
    "plain": {"speculation": False},
    "chain": {"tree_width": 1, "tree_size": None},
    "tree": {"tree_width": 3, "tree_size": 7},
    "streams beside one node": {"tree_width": 3, "tree_size": 7, "stream_nodes": 1},
    "no streams": {"num_streams": 0},
    "pruned": {"tree_width": 2, "tree_size": None, "max_nodes": 5},
}
MODELS = {
    "lossless": {},
    "shared": {"mode": "shared"},
    "conditioned, few tokens": {
        "stream_head": "conditioned",
        "stream_head_rank": 6,
        "draft_vocabulary": 60,
    },
    "selected keys": {"stream_keys": 3},
}


CASES = [
    ("lossless", "plain"),
    ("lossless", "pruned"),
    ("shared", "chain"),
    ("conditioned, few tokens", "tree"),
    ("conditioned, few tokens", "streams beside one node"),
    ("selected keys", "tree"),
    ("lossless", "no streams"),
]


def written(model, count, **fields):
    tokens, logits = [], []
    for step in decode(model, request(PROMPT, max_tokens=count, **fields)):
        tokens += step.tokens
        logits.append(step.result.logits[mx.array(step.rows)])
    return tokens, mx.concatenate(logits)[:count]


@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "keyed"])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_ids_and_logits_are_those_of_steps_built_in_python(kind, way, drawn, monkeypatch):
    """Over 300 tokens, so that the buffers grow once."""
    model = speculative_model(seed=1, **MODELS[kind])
    texts = []
    for said in "01":
        monkeypatch.setenv("SPECSTREAM_COMPILE", said)
        sampler = keyed_sampler(5, temp=0.8) if drawn else None
        texts.append(written(model, 300, drafting=DraftSettings(**WAYS[way]), sampler=sampler))
    assert texts[0][0] == texts[1][0]
    assert_close(texts[1][1], texts[0][1])
    counts = model.compiled.counts
    assert counts["compiled"] > 0.8 * counts.total()


def test_adapters_of_one_pass_have_traces_of_their_own(tmp_path, monkeypatch):
    """Each new set of sequences has other tensors, so no trace of the set before is used."""
    base = tiny_llama_directory(tmp_path / "base")
    names = [None]
    for seed in range(2):
        names.append(tmp_path / str(seed))
        lora = {"mode": "shared", "lora_rank": 4, "lora_scale": 2.0}
        stream_adapter_directory(names[-1], base, seed=seed, **lora)
    texts = []
    for said in "01":
        monkeypatch.setenv("SPECSTREAM_COMPILE", said)
        pair = load(base)
        for chosen in (names, names[::-1], [*names, names[2]]):
            prompts, counts = ["please send the report"] * len(chosen), [24, 40, 60, 30]
            made = batch_generate(*pair, prompts, max_tokens=counts[: len(chosen)], adapters=chosen)
            texts.append((said, made.texts))
    assert [text for said, text in texts if said == "1"] == [text for _, text in texts[:3]]


def test_traces_are_few_and_keep_no_model_alive(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECSTREAM_COMPILE", "1")
    monkeypatch.setattr(compiled, "MOST_TRACES", 2)
    model, _ = load(tiny_llama_directory(tmp_path / "base"))
    for _ in range(2):  # a text's own traces serve the next
        for size in (1, 2, 3):
            settings = DraftSettings(lookup=True, lookup_size=size)
            assert len(written(model, 30, drafting=settings)[0]) >= 30
        assert 0 < len(model.compiled) <= 2
    module = weakref.ref(model.model)
    del model
    gc.collect()
    assert module() is None


def test_buffers_have_few_sizes():
    rooms = sorted({room_for(rows) for rows in range(200, 5000)})
    assert rooms == [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144]
    assert room_for(1) == (64 if device.backend() == "cpu" else 256)
    assert all(room_for(rows) >= rows for rows in range(1, 5000))


class Clocked(FixedPlanner):
    """A planner that notes which steps' times it is told."""

    def __init__(self, settings, plan_of):
        super().__init__(settings, plan_of, True)
        self.timed = []

    def accept(self, plan, tokens, seconds):
        super().accept(plan, tokens, seconds)
        self.timed.append(seconds is not None)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "trees"])
def test_only_compiled_steps_are_timed(plain, monkeypatch):
    """Not those that Python builds, nor the one that is traced; where none is compiled, all."""
    settings = DraftSettings(speculation=not plain, tree_width=1, tree_size=None, num_streams=1)
    for said, untimed in ("0", 1), ("1", TRACED_AT):
        monkeypatch.setenv("SPECSTREAM_COMPILE", said)
        model = speculative_model(seed=1)
        planner = Clocked(settings, settings.plans(model.streams.config))
        for _ in decode(model, request(PROMPT, planner, max_tokens=40)):
            pass
        timed = planner.timed
        if plain:
            assert timed == [False] * untimed + [True] * (40 - untimed)
        else:  # a step of the root alone, steps of two nodes, and another of the root
            first = timed.index(True)
            assert all(timed[first:]) and first == (untimed + 1 if said == "1" else 1)
