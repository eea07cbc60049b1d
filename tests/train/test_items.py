"""The order of the training items."""

from specstream_mlx.train.items import Batches, Item, most_frequent


def test_batches_are_a_function_of_seed_and_step():
    items = [Item(list(range(5 + n % 40)), 2) for n in range(103)]
    batches = Batches(items, 8, seed=3)
    assert len(batches) == 13
    drawn = batches.from_step(0)
    two_epochs = [next(drawn) for _ in range(26)]
    for epoch in (two_epochs[:13], two_epochs[13:]):
        assert sorted(id(item) for batch in epoch for item in batch) == sorted(map(id, items))
    assert two_epochs[:13] != two_epochs[13:]
    for step in (0, 5, 13, 20):
        later = batches.from_step(step)
        assert [next(later) for _ in range(26 - step)] == two_epochs[step:]
    assert next(Batches(items, 8, seed=4).from_step(0)) != two_epochs[0]
    padding = sum(
        8 * max(len(i.tokens) for i in b) - sum(len(i.tokens) for i in b) for b in two_epochs
    )
    assert padding < 0.2 * sum(len(i.tokens) for b in two_epochs for i in b)


def test_the_most_frequent_tokens_of_completions():
    """Of equals those of all text, then those of the vocabulary."""
    items = [Item([9, 9, 9, 5, 5, 7], 3), Item([4, 8, 7, 5, 8], 2)]
    assert most_frequent(items, 2, 10) == [5, 7]
    assert most_frequent(items, 3, 10) == [5, 7, 8]
    assert 9 in most_frequent(items, 4, 10)
