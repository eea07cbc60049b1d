"""Drafting that adapts: which arm is in use, on synthetic steps; and that no text changes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from random_models import plain_tokens, random_prompt, request, speculative_model, tokens_of
from tiny_models import tiny_tokenizer

from specstream_mlx import DraftSettings, Sampling, UserError, stream_generate
from specstream_mlx.autotune.adaptive import AdaptiveDrafting, Arm
from specstream_mlx.loop import Drafting, decode

PLAIN = Arm("plain", DraftSettings(speculation=False), 1.0, 1.0, 1.0, 0.0, (1.0,))
STREAMS = Arm("streams", DraftSettings(), 2.5, 5.0, 1.6, 0.0, (1.2, 1.3, 1.4, 1.5, 1.6))
LOOKUP = Arm(
    "lookup", DraftSettings(num_streams=0, lookup=True), 1.5, 3.0, 1.2, 0.0, (1.0, 1.1, 1.2)
)


@dataclass
class FakeStep:
    """What ``observe`` reads of a ``loop.Step``."""

    tokens: list
    tested_nodes: int
    seconds: float


class Machine:
    """Runs a drafting on synthetic steps.

    Args:
        tokens: tokens per step of each kind, or a function of the token's place.
        slowness: the clock over the arms' own costs, by kind; 1 where it is not given.
    """

    def __init__(self, arms, tokens, slowness=None):
        self.drafting = AdaptiveDrafting(arms)
        self.arms = {id(arm.settings): arm for arm in arms}
        self.tokens, self.slowness = tokens, slowness or {}
        self.kinds, self.seconds, self.count, self._owed = [], 0.0, 0, 0.0

    def run(self, count, wait=lambda step: 0.0):
        """``count`` steps; ``wait`` are a slow reader's seconds."""
        for _ in range(count):
            arm = self.arms[id(self.drafting.settings())]
            kind = arm.kind
            entered = not self.kinds or self.kinds[-1] != kind
            if entered and self.kinds and self.kinds[-1] == "plain":
                self.seconds += PLAIN.seconds  # the call ahead
            nodes = 1 if entered or kind == "plain" else len(arm.costs)
            rate = 1.0 if entered else self.tokens[kind]
            self._owed += rate
            tokens = int(self._owed)
            self._owed -= tokens
            seconds = arm.cost(nodes) * self.slowness.get(kind, 1.0)
            self.drafting.observe(FakeStep([0] * tokens, nodes, seconds + wait(len(self.kinds))))
            self.kinds.append(kind)
            self.seconds += seconds
            self.count += tokens
        return self

    def share(self, kind, last):
        """Of the last steps, how many were of ``kind``."""
        return self.kinds[-last:].count(kind) / last


def test_the_first_arm_stays_where_it_keeps_its_promise():
    machine = Machine([STREAMS, PLAIN, LOOKUP], {"streams": 2.5, "plain": 1, "lookup": 1.5})
    machine.run(1500)
    assert machine.share("streams", 1500) > 0.95
    assert machine.count / machine.seconds > 0.97 * STREAMS.rate


def test_useless_drafts_give_way_to_plain_decoding_in_some_steps():
    machine = Machine([STREAMS, PLAIN], {"streams": 1.0, "plain": 1})
    machine.run(30)
    assert machine.kinds[-1] == "plain"
    machine.run(1500)
    assert machine.share("plain", 1400) > 0.9


@pytest.mark.parametrize("count", [200, 5000])
@pytest.mark.parametrize("hopeful", [True, False])
def test_hopeless_drafts_cost_less_than_three_per_cent(count, hopeful):
    """Plain decoding was chosen, and all that is tried is useless, whatever was hoped of it."""
    streams = STREAMS if hopeful else replace(STREAMS, tokens=1.02)
    streams = replace(streams, tokens=min(streams.tokens, 1.55))
    machine = Machine([PLAIN, streams, LOOKUP], {"streams": 1.0, "plain": 1, "lookup": 1.0})
    machine.drafting._arms[2].tokens = 1.1
    machine.run(count)
    assert machine.count / machine.seconds > 0.97 * PLAIN.rate
    assert count < 5000 or set(machine.kinds) == {"plain", "streams", "lookup"}


def test_acceptance_that_returns_is_found():
    machine = Machine([STREAMS, PLAIN], {"streams": 1.0, "plain": 1}).run(600)
    assert machine.share("plain", 100) == 1
    machine.tokens["streams"] = 2.5
    machine.run(1500)
    assert machine.share("streams", 500) > 0.9


def test_another_kind_takes_over_where_the_present_one_fails():
    """A copied text: the streams miss, lookup does not."""
    arms = [STREAMS, replace(LOOKUP, tokens=1.5), PLAIN]
    machine = Machine(arms, {"streams": 1.1, "plain": 1, "lookup": 3.0}).run(400)
    assert machine.share("lookup", 300) > 0.9


def test_steps_that_take_longer_than_thought_are_found_out():
    """The table was wrong about one arm alone."""
    machine = Machine(
        [STREAMS, PLAIN], {"streams": 2.5, "plain": 1}, slowness={"streams": 3.0}
    ).run(2000)
    assert machine.share("plain", 500) > 0.9


def test_a_slower_machine_changes_nothing():
    slowness = dict.fromkeys(("streams", "plain", "lookup"), 1.0)
    machine = Machine(
        [STREAMS, PLAIN, LOOKUP], {"streams": 2.5, "plain": 1, "lookup": 1.5}, slowness
    ).run(200)
    for kind in slowness:
        slowness[kind] = 3.0
    machine.run(300)
    assert machine.share("streams", 300) > 0.9


@pytest.mark.parametrize("every", [7, 50])
def test_a_reader_who_pauses_changes_nothing(every):
    machine = Machine([STREAMS, PLAIN, LOOKUP], {"streams": 2.5, "plain": 1, "lookup": 1.5})
    machine.run(600, wait=lambda step: 40.0 if step % every == 0 else 0.0)
    assert machine.share("streams", 600) > 0.9


def test_a_few_unlucky_steps_change_nothing():
    """Steps of a text vary from none to all drafts accepted; a hundred texts of twelve steps."""
    changes = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        drafting = AdaptiveDrafting([STREAMS, replace(LOOKUP, tokens=1.8), PLAIN])
        for number in range(12):
            nodes = 1 if number == 0 else 5
            tokens = 1 if number == 0 else rng.choice([1, 2, 3, 4], p=[0.3, 0.2, 0.2, 0.3])
            drafting.observe(FakeStep([0] * tokens, nodes, 1.6))
        changes += drafting.arm is not STREAMS
    assert changes == 0


def test_the_next_text_begins_with_what_the_last_one_showed():
    arms = [STREAMS, PLAIN, LOOKUP]
    machine = Machine(arms, {"streams": 1.0, "plain": 1, "lookup": 1.0}).run(400)
    following = machine.drafting.successor()
    assert AdaptiveDrafting(arms).arm is STREAMS
    assert following.arm is PLAIN
    assert following.arms == tuple(arms)


def test_a_successor_and_what_it_came_from_go_their_own_ways():
    machine = Machine([STREAMS, PLAIN], {"streams": 2.5, "plain": 1}).run(40)
    following = Machine([STREAMS, PLAIN], {"streams": 1.0, "plain": 1})
    following.drafting = machine.drafting.successor()
    following.run(400)
    assert following.drafting.arm is PLAIN
    assert machine.drafting.arm is STREAMS
    assert machine.run(400).share("streams", 300) > 0.9


def test_a_trial_ends_with_its_text():
    machine = Machine([STREAMS, PLAIN], {"streams": 1.0, "plain": 1})
    while machine.drafting.arm is STREAMS:
        machine.run(1)
    assert machine.drafting.successor().arm is STREAMS


def real_arms():
    """Arms that all look equally good, so that all come into use."""
    kinds = {
        "plain": DraftSettings(speculation=False),
        "streams": DraftSettings(tree_width=3, tree_size=6),
        "hybrid": DraftSettings(lookup=True, tree_size=6),
        "lookup": DraftSettings(num_streams=0, lookup=True),
    }
    return [Arm(kind, settings, 1.4, 2.0, 1.0, 0.0, (1.0,)) for kind, settings in kinds.items()]


COUNT = 160
TOKENIZER = TokenizerWrapper(tiny_tokenizer())
TOKENIZER.eos_token_ids = ()  # without its own


class Clockless(AdaptiveDrafting):
    """Every step takes the time that its arm expects, however busy the machine is."""

    def observe(self, step):
        super().observe(replace(step, seconds=self.arm.cost(step.tested_nodes)))


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_text_stays_the_same(mode):
    model, prompt = speculative_model(mode=mode), random_prompt(9)
    expected = tokens_of(model, prompt, COUNT, speculation=False)[:COUNT]
    if mode == "lossless":
        assert expected == plain_tokens(model.model, prompt, COUNT)
    drafting, tokens, used = Clockless(real_arms()), [], set()
    assert isinstance(drafting, Drafting)
    for step in decode(model, request(prompt, drafting)):
        tokens += step.tokens
        used.add(drafting.arm.kind)
        if len(tokens) >= COUNT:
            break
    assert tokens[:COUNT] == expected
    assert len(used) >= 3


def test_stream_generate_takes_a_drafting():
    model, prompt = speculative_model(), random_prompt(9)
    drafting = AdaptiveDrafting(real_arms())
    found = stream_generate(model, TOKENIZER, prompt, 40, settings=drafting)
    assert [response.token for response in found] == plain_tokens(model.model, prompt, 40)


def test_what_is_no_drafting_is_refused():
    model, prompt = speculative_model(), random_prompt(9)
    drafting = AdaptiveDrafting(real_arms())
    cases = [
        ({"settings": "fast"}, "settings is 'fast', expected"),
        ({"settings": drafting, "tree_size": 4}, "tree_size was given too"),
        (
            {"settings": drafting, "verify": "rejection", "sampler": Sampling(temp=1.0)},
            "drafts change from step to step",
        ),
    ]
    for arguments, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            stream_generate(model, TOKENIZER, prompt, 4, **arguments)
    fixed = DraftSettings(tree_width=1, tree_size=None)
    sampler = Sampling(temp=1.0)
    stream_generate(
        model, TOKENIZER, prompt, 4, settings=fixed, verify="rejection", sampler=sampler
    )
