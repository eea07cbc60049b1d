"""Calls are ahead as far as they may be, and none is made behind the end."""

from functools import partialmethod

import pytest
from changing_drafts import KINDS, AnyDrafting
from random_models import plain_tokens, random_prompt, request, speculative_model

from specstream_mlx import UserError, scheduler
from specstream_mlx.drafting.cost import BatchCosts
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.scheduler import Scheduler, TokenSequence, decode


@pytest.fixture
def calls(monkeypatch):
    """Names of the decoder's calls, in their order."""
    made = []

    def call(self, name, method, *args):
        made.append(name)
        return method(self, *args)

    for name in ("next_token", "step", "uncommit"):
        method = getattr(scheduler.Decoder, name)
        monkeypatch.setattr(scheduler.Decoder, name, partialmethod(call, name, method))
    return made


def test_a_call_under_way_is_used_when_drafting_begins(calls):
    """No call of plain steps is thrown away but at the end."""
    model, prompt = speculative_model(), random_prompt(9)
    drafting = AnyDrafting(model, prompt, 0, KINDS[:3])
    steps = list(decode(model, request(prompt, drafting, max_tokens=60)))
    assert calls == ["next_token" if step.plan.pipelined else "step" for step in steps]
    assert len(set(calls)) == 2
    # An adapter that is swapped ends a generation.
    steps = decode(model, request(prompt, DraftSettings()))
    next(steps)
    model.swap_adapter(None)
    with pytest.raises(UserError, match="the adapter was swapped during a generation"):
        next(steps)


@pytest.mark.parametrize("settings", [KINDS[0], KINDS[2], KINDS[5]])
@pytest.mark.parametrize("by", ["max_tokens", "end_tokens"])
def test_no_call_is_made_behind_the_end(settings, by, calls):
    """But for the one that plain steps are ahead of an end token, which nobody can know of."""
    model, prompt = speculative_model(), random_prompt(9)
    expected = plain_tokens(model.model, prompt, 30)
    end = next(i for i, token in enumerate(expected) if i > 10 and token not in expected[:i])
    limit = {"max_tokens": end + 1} if by == "max_tokens" else {"end_tokens": [expected[end]]}
    steps = list(decode(model, request(prompt, settings, **limit)))
    tokens = [token for step in steps for token in step.tokens]
    assert tokens[: end + 1] == expected[: end + 1]
    assert len(tokens) - len(steps[-1].tokens) <= end
    ahead = int(settings is KINDS[0] and by == "end_tokens")
    assert len(calls) == len(steps) + 2 * ahead and calls.count("uncommit") == ahead


@pytest.mark.parametrize(
    ("options", "ahead"),
    [({"speculation": False}, [1] * 5), ({"tree_width": 2, "tree_size": 4}, [0, 1, 1, 1, 1])],
)
def test_steps_are_one_call_ahead(options, ahead, calls):
    """But for the first tree: nobody waits for the second call before the first token."""
    steps = decode(speculative_model(), request(random_prompt(9), DraftSettings(**options)))
    found = [len(calls) - count for count, _ in zip(range(1, 6), steps, strict=False)]
    assert found == ahead


def test_passes_of_several_texts_are_timed_with_their_rows_and_tokens(monkeypatch):
    model, together, timed, seen = speculative_model(mode="shared"), Scheduler(), [], []
    monkeypatch.setattr(BatchCosts, "note", lambda self, *values: timed.append(values))
    for number, limit in enumerate((30, 12, 12)):
        asked = request(random_prompt(5 + number, seed=number), None, max_tokens=limit)
        together.add(TokenSequence(model, asked))
    for steps in together.steps():
        if len(steps) > 1:
            plans = [step.plan for _, step in steps]
            rows = len(steps) * max(len(plan.tree) for plan in plans)
            tokens = sum(len(step.tokens) for _, step in steps)
            seen.append((len(steps), rows, any(plan.width for plan in plans), tokens))
    assert [values[:4] for values in timed] == seen
    assert max(seen)[0] == 3
    times = [values[4] for values in timed]
    assert times[0] is None and any(times)  # they joined in the first pass
