"""The benchmark of a step's cost: what it divides by, and a short run on a random Llama."""

from benchmarks.bare_forwards import BareForwards
from benchmarks.random_llama import random_llama, with_streams
from benchmarks.step_rows import StepRows


def test_bare_forwards_leave_the_caches_as_they_were():
    model = dict(with_streams(*random_llama(4, 64, 50)))["untrained, lossless"]
    bare = BareForwards(model.model, 3, [1, 2, 3])
    for _ in range(2):
        assert bare.seconds(StepRows(7, 35, (7, 4), 4)) > 0
        assert bare.products(StepRows(7, 35, (7, 4), 4)) > 0
        assert [cache.offset for cache in bare.caches] == [3] * 4
