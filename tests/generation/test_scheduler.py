"""Sequences alone and side by side: each text is that of its prompt alone, no call is wasted."""

import itertools
from functools import partialmethod

import pytest
from architecture_models import CASES, pair
from random_models import (
    STREAMS,
    TrueTrees,
    assert_same_rows,
    paired,
    plain_caches,
    plain_tokens,
    random_prompt,
    request,
    speculative_model,
    tokens_of,
)
from tiny_models import tokenizer_ending
from trees import KINDS, AnyDrafting, Planned

from specstream_mlx import PromptCache, UserError, batch_generate, keyed_sampler, stream_generate
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.step import Decoder
from specstream_mlx.generation.batch import Batch, decode
from specstream_mlx.generation.sequence import TokenSequence

LENGTHS = [9, 1, 30, 2, 17]
PROMPTS = [random_prompt(length, seed=length) for length in LENGTHS]
BASES = ["grouped heads, tied", "one kv head, untied", "full heads, biases", "llama3 rope"]


def alone(model, prompt, count, sampler=None):
    """The text of one prompt; mlx_lm's in lossless mode."""
    if model.mode == "lossless":
        return plain_tokens(model.model, prompt, count, sampler=sampler)
    steps = decode(model, request(prompt, DraftSettings(speculation=False), sampler=sampler))
    return [token for step in itertools.islice(steps, count) for token in step.tokens]


def together(model, prompts=PROMPTS, max_tokens=40, ends=(), **settings):
    response = batch_generate(
        model,
        tokenizer_ending(*ends),
        prompts,
        max_tokens=max_tokens,
        return_token_ids=True,
        **settings,
    )
    assert response.texts == [tokenizer_ending().decode(ids) for ids in response.token_ids]
    return response


def test_end_tokens():
    """Texts end at different times."""
    model = speculative_model(seed=1)
    truths = [alone(model, prompt, 40) for prompt in PROMPTS]
    ends = {truths[0][11], truths[2][4]}
    expected = []
    for truth in truths:
        count = next((n for n, token in enumerate(truth[:30]) if token in ends), 30)
        expected.append((truth[:count], "length" if count == 30 else "stop"))
    response = together(model, max_tokens=30, ends=ends)
    assert list(zip(response.token_ids, response.finish_reasons, strict=True)) == expected
    assert "stop" in response.finish_reasons
    tokens = sum(len(text) + (reason == "stop") for text, reason in expected)
    assert response.stats.generation_tokens == tokens
    assert response.stats.prompt_tokens == sum(LENGTHS)


@pytest.mark.parametrize("case", CASES)
def test_architectures(case):
    """Texts in one pass or, of models that stay alone, in passes of their own."""
    model = pair(case).model
    vocab_size = model.config["vocab_size"]
    prompts = [random_prompt(length, seed=length, vocab_size=vocab_size) for length in (5, 9, 2)]
    prompts[2] = prompts[1][:7] + prompts[2]
    expected = [tokens_of(model, prompt, 8)[:8] for prompt in prompts]
    assert together(model, prompts, 8).token_ids == expected


PLACES = [{"num_streams": 0, "lookup": True}, {}, {"max_nodes": 7, "prune_threshold": 1e-3}]
PLACES += [{"max_nodes": 5}, {"stream_nodes": 2}, {"stream_nodes": 1}]


@pytest.mark.parametrize(
    ("streams", "base", "mode", "fields"),
    paired(STREAMS, BASES, ["lossless", "shared", "lossless"], PLACES, count=12),
)
def test_trees_of_any_shapes_while_texts_join_and_leave(streams, base, mode, fields):
    """Greedy and drawn, one of them without drafts; in the end a prompt cache holds its rows."""
    if mode == "shared":
        fields = {name: value for name, value in fields.items() if name != "stream_nodes"}
    model = speculative_model(base, mode=mode, seed=1, **STREAMS[streams])
    plan_of = DraftSettings(tree_width=2, **fields).plans(model.streams.config)
    samplers = [lambda: None, lambda: keyed_sampler(7, top_p=0.9), lambda: None] * 2
    prompts, limits = [*PROMPTS, PROMPTS[2]], [24, 9, 17, 3, 21, 12]
    each = zip(prompts, limits, samplers, strict=True)
    truths = [alone(model, prompt, limit + 6, sampler()) for prompt, limit, sampler in each]
    together, caches = Batch(), [PromptCache() for _ in prompts]
    texts, found, sizes, longest = [], {}, set(), 0

    def join():
        number = len(texts)
        drafting = Planned(TrueTrees(truths[number], number), plan_of)
        if number == 2:
            drafting = DraftSettings(speculation=False)
        own = {"max_tokens": limits[number], "sampler": samplers[number]()}
        asked = request(prompts[number], drafting, prompt_cache=caches[number], **own)
        texts.append(TokenSequence(model, asked))
        texts[-1].read_all()
        together.add(texts[-1])
        found[texts[-1]] = []

    join()
    for number in itertools.takewhile(lambda _: together, itertools.count()):
        steps = together.step()
        for text, step in steps:
            found[text] += step.tokens
            longest = max(longest, len(step.tokens))
        sizes.add(tuple(len(step.tree) for _, step in steps))
        if number % 2 and len(texts) < len(prompts):
            join()
        if number == 5:
            together.remove(texts[0])
    assert len(texts) == len(prompts)
    assert max(map(len, sizes)) >= 3 and any(len(set(counts)) > 1 for counts in sizes)
    assert longest >= 3
    for number, text in enumerate(texts):
        count = len(found[text]) if number == 0 else limits[number]
        assert found[text][:count] == truths[number][:count]
        cache = caches[number]
        written = [*prompts[number], *found[text]]
        assert cache.tokens == written[: -1 if mode == "lossless" else len(prompts[number]) - 1]
        for layer in cache.caches:
            layer.trim(layer.offset - cache.rows)
        if cache.rows:
            assert_same_rows(cache.caches, plain_caches(model.model, cache.tokens))
    assert 0 < len(found[texts[0]]) < limits[0]


def test_batches_without_drafts_and_of_a_size():
    model = speculative_model(mode="shared", seed=1)
    expected = [alone(model, prompt, 12) for prompt in PROMPTS]
    sizes = {"settings": None, "completion_batch_size": 2, "prefill_batch_size": 1}
    assert together(model, max_tokens=12, **sizes).token_ids == expected
    response = together(model, max_tokens=12, speculation=False)
    assert response.token_ids == expected
    assert (response.stats.generation_steps, response.stats.accepted_length) == (12, 1)
    none = together(model, [], return_logprobs=True, return_prompt_caches=True)
    assert none.texts == none.caches == none.token_ids == none.logprobs == []


# Turns


class Timed(AnyDrafting):
    """Keeps the seconds of every step that is timed, else ``None``."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seconds = []

    def accept(self, plan, tokens, seconds):
        self.seconds.append(seconds)
        super().accept(plan, tokens, seconds)


def test_a_step_is_timed_only_in_rounds_without_other_turns():
    """Of the prompts that are read in a round one has a turn, for a chunk, and every pass has."""
    sizes = {"hidden_size": 128, "intermediate_size": 48, "vocab_size": 97}  # heads of 32
    model, batch, found = speculative_model(seed=1, sizes=sizes), Batch(), {}
    prompts, limits = [PROMPTS[0], PROMPTS[4], PROMPTS[4], PROMPTS[2]], [40, 6, 6, 6]
    fields = [{}, {"kv_bits": 8, "kv_group_size": 32}, {"prefill_step_size": 4}, {}]
    planners = [Timed(model, prompt, 0) for prompt in prompts]
    each = zip(prompts, planners, limits, fields, strict=True)
    texts = [
        TokenSequence(model, request(prompt, planner, max_tokens=limit, **more))
        for prompt, planner, limit, more in each
    ]

    def turn():
        steps, who = batch.step(), [texts.index(text) for text in batch.turn]
        for text, step in steps:
            found[text] = [*found.get(text, []), *step.tokens[: step.kept]]
        return who

    batch.add(texts[0])
    turns = [turn() for _ in range(6)]
    assert turns == [[0]] * 6
    for text in texts[1:]:
        batch.add(text)
    turns = [turn() for _ in range(24)]
    # A round each: the quantized prompt, which joins with a pass of its own; five chunks of the
    # next one, during which the others take steps; the last one.
    assert turns[:8] == [[1], [0], [1], [2], [0], [1], [2], [0]]
    assert [0, 2] in turns and not any(1 in who and len(who) > 1 for who in turns)
    while batch:
        turn()
    for text, prompt, limit, more in zip(texts, prompts, limits, fields, strict=True):
        asked = request(prompt, KINDS[0], max_tokens=limit, **more)
        assert found[text] == [token for step in decode(model, asked) for token in step.tokens]
    seconds, others = planners[0].seconds, [planner.seconds for planner in planners[1:]]
    assert None not in seconds[1:5] and None not in seconds[-2:]
    assert set(seconds[5:12]) == {None} and all(set(one) == {None} for one in others)


# Calls ahead


@pytest.fixture
def calls(monkeypatch):
    """Names of the decoder's calls, in their order."""
    made = []

    def call(self, name, method, *args):
        made.append(name)
        return method(self, *args)

    for name in ("next_token", "step", "uncommit"):
        method = getattr(Decoder, name)
        monkeypatch.setattr(Decoder, name, partialmethod(call, name, method))
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
    assert len(calls) == len(steps) + (settings is KINDS[0] and by == "end_tokens")


@pytest.mark.parametrize("settings", [KINDS[0], KINDS[3]])
def test_a_stop_string_ends_its_sequence(settings, calls):
    """With the call under way, since no text waits for its words before the next one is made."""
    model, prompt = speculative_model(), random_prompt(9)
    words, cache = tokenizer_ending(), PromptCache()
    text = words.decode(plain_tokens(model.model, prompt, 30))
    options = {"settings": settings, "stop": text[20:22], "prompt_cache": cache}
    *_, last = stream_generate(model, words, prompt, 60, **options)
    assert last.finish_reason == "stop" and last.generation_tokens < 30
    assert len(calls) == last.target_calls + 1
    assert len(cache.tokens) >= len(prompt) + last.generation_tokens - 1


@pytest.mark.parametrize(
    ("options", "ahead"),
    [({"speculation": False}, [1] * 5), ({"tree_width": 2, "tree_size": 4}, [0, 1, 1, 1, 1])],
)
def test_steps_are_one_call_ahead(options, ahead, calls):
    """But for the first tree: nobody waits for the second call before the first token."""
    steps = decode(speculative_model(), request(random_prompt(9), DraftSettings(**options)))
    found = [len(calls) - count for count, _ in zip(range(1, 6), steps, strict=False)]
    assert found == ahead
