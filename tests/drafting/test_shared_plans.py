"""Plans of rank 0 that the others carry out, over a wire of JSON."""

import json
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from random_models import random_tree

from specstream_mlx.drafting import Sharing
from specstream_mlx.drafting.batch_cost import BatchCosts
from specstream_mlx.drafting.shared_plans import HeardPlans, ToldPlans
from specstream_mlx.engine.plan import LIKELIEST, Plan
from specstream_mlx.engine.tree import root_only


class Wire:
    """The ranks, as both ends see them."""

    def __init__(self):
        self._lines = []

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
    wire = Wire()
    drafting = SimpleNamespace(first=lambda root: plan, plan=lambda *_: plan)
    told, heard = ToldPlans(drafting, wire), HeardPlans(wire)
    assert told.first(7) is plan
    assert values_of(heard.first(7)) == values_of(plan)
    assert told.plan(7, None) is plan
    assert values_of(heard.plan(7, None)) == values_of(plan)


def test_rank_0_weighs_what_a_pass_costs():
    costs = BatchCosts()
    told = ToldPlans(SimpleNamespace(beside=lambda texts: costs), Wire())
    assert isinstance(told, Sharing)
    assert told.beside(3) is costs
    assert ToldPlans(SimpleNamespace(), Wire()).beside(3) is None
