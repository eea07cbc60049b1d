"""The simulation of the rule on recorded texts, under costs that are assumed."""

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.drafting_rule import VARIANTS, Recording, assumed, changed, rates_of
from specstream_mlx.engine.guess import StreamGuesses
from specstream_mlx.stream_config import StreamConfig

STREAMS = StreamConfig(
    mode="lossless", hidden_size=32, num_hidden_layers=8, num_streams=4, num_msa_layers=2
)


def foreseen(tokens, rank):
    """What streams guess behind each token: the next ones in place ``rank(n)``, 2: not at all.

    Second guesses are ones that they hardly believe in.
    """
    scores = np.log(np.full((4, 2), [0.9, 0.015], np.float32))
    padded, found = [*tokens, *[0] * 5], []
    for n in range(len(tokens)):
        guesses = np.arange(5000, 5008, dtype=np.int32).reshape(4, 2)
        if rank(n) < 2:
            guesses[:, rank(n)] = padded[n + 1 : n + 5]
        found.append(StreamGuesses(guesses, scores))
    return found


def recordings(rank, count=6):
    """Texts in which no token comes twice."""
    tokens = list(range(100, 200))
    return [Recording([1, 2, 3], tokens, foreseen(tokens, lambda n: rank))] * count


@pytest.mark.parametrize("alone", [False, True])
def test_what_streams_know_is_gained_and_what_they_do_not_costs_little(alone):
    always = {"known": 0, "new": 2}
    texts = {("base", name, "any"): recordings(rank) for name, rank in always.items()}
    rates = rates_of(texts, {"base": STREAMS}, alone)
    assert rates.keys() == {
        f"base, {name}, {rows} rows" for name in always for rows in ("dear", "cheap")
    }
    assert 1.5 < rates["base, known, dear rows"][0] < rates["base, known, cheap rows"][0] < 4
    assert all(0.9 < rates[f"base, new, {rows} rows"][0] <= 1 for rows in ("dear", "cheap"))
    assert all(least <= mean for mean, least in rates.values())


def test_streams_that_are_right_later_on_are_found_out():
    tokens = list(range(100, 2100))
    text = Recording([1, 2, 3], tokens, foreseen(tokens, lambda n: 0 if n > 500 else 2))
    rates = rates_of({("base", "late", "any"): [text]}, {"base": STREAMS})
    assert rates["base, late, dear rows"][0] > 1.2 and rates["base, late, cheap rows"][0] > 1.7


def test_assumed_costs_are_not_measured():
    for costs in assumed(STREAMS).values():
        costs.refresh()
        assert costs.wanted() is None and costs.complete


def mixed_texts():
    """Texts that repeat themselves in part, and that streams know in part."""
    rng, texts = random.Random(0), []
    for _ in range(4):
        tokens = [rng.randrange(100, 160) for _ in range(60)]
        tokens += tokens[:30] + [rng.randrange(100, 160) for _ in range(60)] + tokens[10:50]
        ranks = rng.choices(range(3), [rng.random(), 0.2, rng.random()], k=len(tokens))
        guesses = foreseen(tokens, ranks.__getitem__)
        texts.append(Recording([1, 2, 3], tokens, guesses))
    return texts


def test_every_constant_that_is_changed_changes_something():
    """And is what it was before, afterwards."""
    shared = replace(STREAMS, mode="shared")
    texts = mixed_texts()
    recorded = {("base", "mixed", "any"): texts, ("adapters", "mixed", "any"): texts}
    streams = {"base": STREAMS, "adapters": shared}
    usual = rates_of(recorded, streams)
    for name, (module, constant, _) in VARIANTS.items():
        before = getattr(module, constant)
        with changed(name):
            assert rates_of(recorded, streams) != usual, name
        assert getattr(module, constant) == before, name
