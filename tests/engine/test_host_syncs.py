"""A step waits for the device once at most, and all of it is on one stream."""

import mlx.core as mx
import numpy as np
import pytest
from draft_heads import model_with_head
from mlx.utils import tree_flatten
from mlx_lm.sample_utils import make_logits_processors
from random_models import paired, random_prompt, request, speculative_model
from waits import counted_waits, operations

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.sampling import Sampling
from specstream_mlx.generation.batch import Batch, decode
from specstream_mlx.generation.sequence import TokenSequence
from specstream_mlx.hardware import running

CASES = {
    "no drafts": {"speculation": False},
    "lookup": {"num_streams": 0, "lookup": True},
    "chain": {"tree_width": 1, "tree_size": None},
    "all nodes": {"tree_size": 9},
    "some nodes": {"tree_size": 9, "stream_nodes": 2},
    "pruned": {"tree_size": 9, "max_nodes": 4},
    "pruned by a threshold": {"tree_size": 9, "prune_threshold": 0.01},
}


def request_of(name, mode, sampled):
    settings = CASES[name] if mode == "lossless" else {**CASES[name], "stream_nodes": None}
    options = {}
    if sampled:
        options["sampler"] = Sampling(temp=0.8, top_p=0.9)
        options["logits_processors"] = make_logits_processors(repetition_penalty=1.2)
    return request(random_prompt(9), DraftSettings(**settings), **options)


def noted_streams(monkeypatch):
    """Note from now on the stream of every function and method that takes or returns arrays."""
    noted = []

    def watched(name, make):
        def call(*args, **kwargs):
            made = make(*args, **kwargs)
            arrays = [leaf for _, leaf in tree_flatten([args, made])]
            if any(isinstance(leaf, mx.array) for leaf in arrays):
                noted.append((name, mx.default_stream(mx.default_device())))
            return made

        return call

    for owner, name, make in operations():
        monkeypatch.setattr(owner, name, watched(name, make))
    return noted


def check_streams(noted):
    assert len(noted) > 40
    with mx.stream(running.generation_stream):
        expected = mx.default_stream(mx.default_device())
    assert expected != mx.default_stream(mx.default_device())
    assert {name for name, stream in noted if stream != expected} == set()


def check_step(model, asked):
    steps = decode(model, asked)
    next(steps)  # the prompt and the tables of the first shapes
    with counted_waits() as waits:
        for count in range(1, 13):
            mx.async_eval(next(steps).log_probs())
            assert waits.count == count
    with pytest.MonkeyPatch.context() as patch:
        steps = decode(model, asked)
        next(steps)
        noted = noted_streams(patch)
        for _ in range(4):
            next(steps)
        check_streams(noted)


@pytest.mark.parametrize(
    ("name", "mode", "sampled", "keys"),
    paired(CASES, ["lossless", "shared"], [False, True], [3, 0], count=14),
)
def test_a_step_waits_once_and_is_on_one_stream(name, mode, sampled, keys):
    check_step(speculative_model(mode=mode, stream_keys=keys), request_of(name, mode, sampled))


@pytest.mark.parametrize("name", CASES)
def test_texts_side_by_side_are_on_one_stream(name, monkeypatch):
    """While both go on, and when one has ended and the other goes on alone."""
    model, together, settings = speculative_model(), Batch(), DraftSettings(**CASES[name])
    together.add(TokenSequence(model, request(random_prompt(9), settings, max_tokens=30)))
    together.add(TokenSequence(model, request(random_prompt(7, seed=1), settings, max_tokens=6)))
    while together.unread:
        together.step()
    together.step()
    noted = noted_streams(monkeypatch)
    while len(together) == 2:
        together.step()
    together.step()
    assert len(together) == 1
    check_streams(noted)


@pytest.mark.parametrize("head", ["eagle3, some tokens", "medusa, own heads"])
def test_with_a_draft_head_too(head, tmp_path):
    model, _ = model_with_head(head, tmp_path / "head")
    check_step(model, request(random_prompt(9), DraftSettings(tree_size=9), sampler=Sampling(0.8)))


def test_every_read_is_counted():
    made = mx.arange(4)
    reads = [lambda: np.array(made + 1), lambda: (made + 2).tolist(), lambda: int((made + 3)[0])]
    reads += [lambda: bool((made > 9).any()), lambda: mx.eval(made + 4), lambda: list(made + 5)]
    with counted_waits() as waits:
        for number, read in enumerate(reads, start=1):
            read()
            assert waits.count >= number
        before, total = waits.count, made.sum()
        mx.async_eval(total)
        assert waits.count == before
        mx.eval(total)
        assert total.item() == 6 and waits.count == before + 1
