"""Which verify rules go with which samplers and trees."""

import pytest
from mlx_lm.sample_utils import make_sampler
from random_models import request, speculative_model

from specstream_mlx import Sampling, UserError, keyed_sampler
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.verify.by_name import find_rule
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.engine.verify.rejection import RejectionRule
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.scheduler import decode


@pytest.mark.parametrize(
    ("name", "sampler", "sentence"),
    [
        ("greedy", Sampling(temp=0.5), "verify is 'greedy', but a temperature"),
        ("rejection", None, "needs the target's probabilities"),
        ("rejection", make_sampler(temp=0.5), "needs the target's probabilities"),
        ("rejection", keyed_sampler(1, sampler=make_sampler(temp=0.5)), "needs the target's"),
        ("greedy", keyed_sampler(1), "verify is 'greedy', but a temperature"),
        ("sample", Sampling(temp=0.5), "verify is 'sample', expected one of .'greedy', 'keyed'"),
        ("typical", Sampling(), "needs the target's probabilities"),
        ("best", None, "verify is 'best', expected one of"),
    ],
)
def test_rules_that_do_not_go_with_a_sampler(name, sampler, sentence):
    with pytest.raises(UserError, match=sentence):
        find_rule(name, sampler)


KEPT = "lets the drawn tokens decide what is kept"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tree_size": 8}, KEPT),
        ({"draft_threshold": 0.1, "tree_size": None}, KEPT),
        ({"max_nodes": 4, "tree_size": None}, KEPT),
        ({"prune_threshold": 0.1, "tree_size": None}, KEPT),
        ({"tree_size": None, "lookup": True}, "whose drafts are not drawn, expected a tree"),
    ],
)
def test_rejection_refuses_trees_that_drawn_tokens_shape(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        DraftSettings(**fields).check_drawn(None)


def test_rejection_refuses_guesses_that_depend_on_drawn_ones():
    conditioned = speculative_model(stream_head="conditioned", stream_head_rank=4)
    chain = DraftSettings(tree_width=1, tree_size=None)
    asked = request([1], chain, sampler=Sampling(temp=1), verify="rejection")
    with pytest.raises(UserError, match="stream_head is 'conditioned'"):
        decode(conditioned, asked)


@pytest.mark.parametrize(
    ("verify", "sampler", "expected"),
    [
        (None, None, VerifyRule),
        (None, Sampling(temp=1), KeyedRule),
        (None, keyed_sampler(1), KeyedRule),
        (None, lambda log_probs: log_probs.argmax(axis=-1), KeyedRule),
        (None, keyed_sampler(1, 0.0), VerifyRule),
        ("keyed", None, VerifyRule),
        ("rejection", keyed_sampler(1), RejectionRule),
        (RejectionRule, Sampling(temp=1), RejectionRule),
    ],
)
def test_the_rule_follows_from_its_name_and_the_sampler(verify, sampler, expected):
    assert find_rule(verify, sampler) is expected
