"""Plans of rank 0 that the others carry out, over a wire of JSON."""

import json
from dataclasses import fields

import numpy as np
import pytest
from random_models import random_tree

from specstream_mlx.broadcast import Broadcast
from specstream_mlx.engine.plan import LIKELIEST, Plan, root_only


class Wire:
    """The ranks, as both ends see them."""

    def __init__(self, lines, is_first):
        self._lines, self.is_first = lines, is_first

    def tell(self, kind, value):
        self._lines.append(json.dumps([kind, value]))

    def told(self, kind):
        found, value = json.loads(self._lines.pop(0))
        assert found == kind
        return value


def values_of(one):
    """Fields as lists and numbers, with the arrays' dtypes."""
    if isinstance(one, np.ndarray):
        return one.dtype, one.tolist()
    if isinstance(one, tuple):
        return [values_of(part) for part in one]
    if hasattr(one, "__dataclass_fields__"):
        return {field.name: values_of(getattr(one, field.name)) for field in fields(one)}
    return one


@pytest.mark.parametrize(
    "plan",
    [
        Plan(root_only(7), place="plain"),
        Plan(
            random_tree(np.random.default_rng(0), 7, depth=3, width=2),
            place="beside",
            streams=3,
            width=4,
            expand=(LIKELIEST, np.arange(4)),
            beside=2,
            keep=5,
            threshold=0.1,
        ),
    ],
)
def test_all_of_a_plan_arrives(plan):
    lines, made = [], []
    first, other = (Broadcast(Wire(lines, is_first)) for is_first in (True, False))
    assert first.plan(lambda: plan) is plan
    assert values_of(other.plan(lambda: made.append(plan))) == values_of(plan)
    assert not made  # another rank makes none
