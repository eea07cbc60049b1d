"""Settings that change from step to step change no token."""

import itertools

import pytest
from changing_drafts import FEW, KINDS, AnyDrafting, switching
from random_models import plain_tokens, random_prompt, request, speculative_model, tokens_of

from specstream_mlx import UserError, loop
from specstream_mlx.drafting.batch_cost import BatchCosts
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.loop import Together, decode


@pytest.mark.parametrize(("seed", "base"), [(0, "grouped heads, tied"), (1, "sliding windows")])
def test_lossless_is_plain_decoding(seed, base):
    model, prompt = speculative_model(base), random_prompt(9)
    expected = plain_tokens(model.model, prompt, 90)
    kinds = [*KINDS, FEW]
    found, seen = switching(model, prompt, 90, seed, kinds)
    assert found == expected
    assert set(seen) == set(range(len(kinds)))
    pairs = set(itertools.pairwise(seen))
    assert len(pairs) > 12, "plain steps were entered and left in many ways"


def test_a_call_under_way_is_used_when_drafting_begins(monkeypatch):
    """No call of plain steps is thrown away but at the end."""
    model, prompt = speculative_model(), random_prompt(9)
    calls = []

    class Watched(loop.Decoder):
        def next_token(self, token, rule):
            calls.append("plain")
            return super().next_token(token, rule)

        def step(self, *args):
            calls.append("tree")
            return super().step(*args)

        def uncommit(self, count):
            calls.append("thrown away")
            super().uncommit(count)

    monkeypatch.setattr(loop, "Decoder", Watched)
    drafting = AnyDrafting(model, prompt, 0, KINDS[:3])
    steps = list(decode(model, request(prompt, drafting, max_tokens=60)))
    assert calls == ["plain" if step.plan.pipelined else "tree" for step in steps]
    assert len(set(calls)) == 2


def test_shared_is_one_token_a_step():
    model, prompt = speculative_model(mode="shared"), random_prompt(9)
    expected = tokens_of(model, prompt, 60, speculation=False)
    assert switching(model, prompt, 60, 4)[0] == expected


def test_an_adapter_that_is_swapped_ends_a_generation():
    model, prompt = speculative_model(), random_prompt(9)
    steps = decode(model, request(prompt, DraftSettings()))
    next(steps)
    model.swap_adapter(None)
    with pytest.raises(UserError, match="the adapter was swapped during a generation"):
        next(steps)


@pytest.mark.parametrize("settings", [KINDS[0], KINDS[1], KINDS[2], KINDS[5]])
@pytest.mark.parametrize("by", ["max_tokens", "end_tokens"])
def test_no_call_is_made_behind_the_end(settings, by, monkeypatch):
    """But for the one that plain steps are ahead of an end token, which nobody can know of."""
    model, prompt = speculative_model(), random_prompt(9)
    expected, calls = plain_tokens(model.model, prompt, 30), []

    class Watched(loop.Decoder):
        def next_token(self, token, rule):
            calls.append(1)
            return super().next_token(token, rule)

        def step(self, *args):
            calls.append(1)
            return super().step(*args)

    monkeypatch.setattr(loop, "Decoder", Watched)
    end = next(i for i, token in enumerate(expected) if i > 10 and token not in expected[:i])
    limit = {"max_tokens": end + 1} if by == "max_tokens" else {"end_tokens": [expected[end]]}
    steps = list(decode(model, request(prompt, settings, **limit)))
    tokens = [token for step in steps for token in step.tokens]
    assert tokens[: end + 1] == expected[: end + 1]
    assert len(tokens) - len(steps[-1].tokens) <= end
    assert len(calls) - len(steps) == (settings is KINDS[0] and by == "end_tokens")


def test_plain_steps_are_one_call_ahead(monkeypatch):
    """The next call is enqueued before the last one's token is read."""
    model, prompt = speculative_model(), random_prompt(9)
    offsets = []

    class Watched(loop.Decoder):
        def next_token(self, token, rule):
            result = super().next_token(token, rule)
            offsets.append(self.caches[0].offset)
            return result

    monkeypatch.setattr(loop, "Decoder", Watched)
    steps = decode(model, request(prompt, DraftSettings(speculation=False)))
    for count, _ in zip(range(1, 6), steps, strict=False):
        assert len(offsets) == count + 1
        assert offsets[-1] == len(prompt) + count


def test_tree_steps_are_one_call_ahead_but_for_the_first(monkeypatch):
    """Nobody waits for the second call before the first token."""
    model, prompt = speculative_model(), random_prompt(9)
    calls = []

    class Watched(loop.Decoder):
        def step(self, *args):
            calls.append(1)
            return super().step(*args)

    monkeypatch.setattr(loop, "Decoder", Watched)
    steps = decode(model, request(prompt, DraftSettings(tree_width=2, tree_size=4)))
    ahead = [len(calls) - count for count, _ in zip(range(1, 6), steps, strict=False)]
    assert ahead == [0, 1, 1, 1, 1]


class Told(BatchCosts):
    """Notes what it is told of passes."""

    def __init__(self):
        super().__init__()
        self.passes = []

    def note(self, *values):
        self.passes.append(values)


class Weighing(AnyDrafting):
    """A drafting that weighs what passes cost."""

    costs, beside_others = None, ()

    def beside(self, texts):
        self.beside_others = (*self.beside_others, texts)
        return self.costs


def test_passes_of_several_texts_are_told_with_their_rows_and_tokens():
    model, costs = speculative_model(mode="shared"), Told()
    together, draftings, seen = Together(model), [], []
    for number, limit in enumerate((30, 12, 12)):
        prompt = random_prompt(5 + number, seed=number)
        draftings.append(Weighing(model, prompt, number, KINDS[:3]))
        draftings[-1].costs = costs
        together.join(request(prompt, draftings[-1], max_tokens=limit))
    for steps in together.steps():
        if len(steps) > 1:
            plans = [step.plan for _, step in steps]
            rows = len(steps) * max(len(plan.tree) for plan in plans)
            tokens = sum(len(step.tokens) for _, step in steps)
            seen.append((len(steps), rows, any(plan.width for plan in plans), tokens))
    assert [values[:4] for values in costs.passes] == seen
    assert {values[0] for values in seen} >= {3}
    times = [values[4] for values in costs.passes]
    assert times[0] is None  # the pass in which they joined
    assert any(times)
    assert set(draftings[0].beside_others) >= {1, 3}
