"""The training mixture: what is exchanged stays together, and no test text is repeated."""

import random

import pytest
from specstream_mlx.convert.demo_model import mixture, tasks, written
from specstream_mlx.convert.demo_model.exchange import Exchanger
from typed_texts import eight_words

SHARES = {"sentences": 400, "dialogues": 300, "rewrites": 500, "notes": 200, "records": 400}


@pytest.fixture(scope="module")
def items():
    rng = random.Random(5)
    return [mixture.draw(rng) for _ in range(8_000)]


@pytest.fixture(scope="module")
def exchanged():
    """Lines and one exchange of each."""
    rng = random.Random(7)
    pairs = []
    for kind, count in SHARES.items():
        for line in rng.sample(list(written.read(kind)), count):
            pairs.append((line, Exchanger(line).draw(rng)))
    return pairs


def exchange(kind, seed=0, **values):
    return Exchanger(written.Written(kind, "a", values)).draw(random.Random(seed))


def test_the_same_state_gives_the_same_items():
    made = [[mixture.draw(random.Random(3), task) for task in tasks.TASKS] for _ in range(2)]
    assert made[0] == made[1]
    assert made[0] != [mixture.draw(random.Random(4), task) for task in tasks.TASKS]


@pytest.mark.slow
def test_no_item_has_eight_words_in_a_row_of_a_test_text(items):
    test = eight_words()
    shared = [
        item
        for item in items
        for text in (item.content, item.target)
        if test & written.ngrams(text, 8)
    ]
    assert not shared, f"{len(shared)} items"


def test_a_draw_that_repeats_a_test_text_is_drawn_again(monkeypatch):
    leaking = next(iter(sorted(eight_words())))
    bad = tasks.Item("concise", "x", " ".join(leaking), "a")
    good = tasks.Item("concise", "x", "y", "a")
    drawn = iter([bad, bad, good])
    monkeypatch.setattr(mixture, "_drawn", lambda rng, task: next(drawn))
    assert mixture.draw(random.Random(0)) == good
