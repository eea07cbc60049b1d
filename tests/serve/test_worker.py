"""The worker: what texts share, the queue, those who leave. What they write: ``test_mixes``."""

import queue
from collections import defaultdict

import pytest
from random_models import plain_tokens, random_prompt, speculative_model
from serving import until

from specstream_mlx.engine.step import Decoder
from specstream_mlx.errors import UserError
from specstream_mlx.serve.app import refusal
from specstream_mlx.serve.client_request import ClientRequest
from specstream_mlx.serve.decoding import Finished, Job
from specstream_mlx.serve.fields import RefusedError
from specstream_mlx.serve.worker import Worker


class Inbox:
    """Jobs of a worker, and what became of them."""

    def __init__(self, tiny, **settings):
        self.models = tiny.models
        self.worker = Worker(tiny.models["base"], tiny.tokenizer, **settings)
        self.tokens, self.order, self.ended = defaultdict(list), [], queue.Queue()

    def job(self, key, prompt, limit, name="base", model=None, processors=(), **fields):
        def deliver(event):
            self.order.append(key)
            if isinstance(event, list):
                self.tokens[key] += [token.id for token in event]
            elif not isinstance(event, int):
                self.ended.put((key, event))

        request, seed = ClientRequest(name, prompt, **fields), fields.get("seed", 0)
        return Job(request, model or self.models[name], prompt, limit, seed, processors, deliver)

    def submit(self, *jobs):
        self.worker.submit(jobs)

    def wait(self, count):
        return dict(self.ended.get(timeout=60) for _ in range(count))


@pytest.fixture
def new_inbox(tiny):
    made = []

    def make(**settings):
        made.append(Inbox(tiny, **settings))
        return made[-1]

    yield make
    for inbox in made:
        inbox.worker.stop()


@pytest.fixture
def inbox(new_inbox):
    return new_inbox(most_texts=3, most_waiting=20)


def test_prompts_that_begin_alike_are_read_once(tiny, inbox):
    start = random_prompt(700)
    inbox.submit(inbox.job("first", start, 4, draft=False))
    assert inbox.wait(1)["first"].cached_tokens == 0
    assert sum(key == "first" for key in inbox.order) > 4  # read in chunks
    longer = [*start, *inbox.tokens["first"], *random_prompt(5, seed=1)]
    inbox.submit(*(inbox.job(name, longer, 4, name) for name in tiny.models))
    found = {name: one.cached_tokens for name, one in inbox.wait(3).items()}
    # The rows of the text's own tokens too, but the last, which was not read. An adapter without
    # LoRA has the base's rows, and is first, served the longest ago: then all but one are there.
    assert found == {"base:other": 703, "base": len(longer) - 1, "base:shared": 0}
    for name in tiny.models:
        assert inbox.tokens[name] == tiny.solo(name, longer, 4)[1]


def test_rows_for_later_prompts_are_bounded(tiny, new_inbox):
    inbox = new_inbox(kept_tokens=100)
    for seed in range(4):
        inbox.submit(inbox.job(seed, random_prompt(60, seed=seed), 4))
        inbox.wait(1)
        held = inbox.worker._batcher.prompt_caches
        assert 60 <= held.tokens <= 100
        rows = sum(layer.keys.shape[2] for *_, one in held.stored for layer in one.caches)
        assert rows == len(tiny.models["base"].model.layers) * held.tokens  # and no room for more


def test_the_queue_is_bounded_and_who_leaves_makes_room(new_inbox):
    inbox = new_inbox(most_texts=1, most_waiting=4)
    first = inbox.job("first", random_prompt(9), 2000)
    inbox.submit(first)
    until(lambda: inbox.worker.decoding)
    jobs = [inbox.job(n, random_prompt(9), 2) for n in range(5)]
    with pytest.raises(RefusedError) as error:
        inbox.submit(*jobs)  # none of them waits then
    response = refusal("/v1/messages", error.value)
    assert (response.status_code, int(response.headers["Retry-After"]) >= 1) == (429, True)
    inbox.submit(*jobs[:4])
    with pytest.raises(RefusedError):
        inbox.submit(jobs[4])
    inbox.worker.cancel(jobs[3])
    assert inbox.worker.waiting == 3
    inbox.submit(jobs[4])
    inbox.worker.cancel(first)
    assert sorted(inbox.wait(4)) == [0, 1, 2, 4]
    assert len(inbox.tokens["first"]) < 2000 and not inbox.worker._batcher.batch


def test_the_model_with_the_fewest_texts_is_next(new_inbox):
    inbox = new_inbox(most_texts=2)
    first = inbox.job("first", random_prompt(9), 2000)
    inbox.submit(first)
    until(lambda: "first" in inbox.order)
    names = ["base", "base", "base:shared", "base:other"]
    inbox.submit(*(inbox.job(name, random_prompt(9), 2, name) for name in names))
    inbox.wait(4)
    inbox.worker.cancel(first)
    begun = [key for key in dict.fromkeys(inbox.order) if key != "first"]
    assert begun == ["base:shared", "base:other", "base"]


@pytest.mark.parametrize("error", [UserError("no more"), ValueError("a mistake")])
def test_a_text_that_fails_takes_no_other_along(error, tiny, inbox):
    def fails(tokens, logits):
        if len(tokens) > 15:
            raise error
        return logits

    prompt = random_prompt(9)
    bad = inbox.job("bad", prompt, 20, processors=[fails])
    inbox.submit(inbox.job("good", prompt, 20), bad, inbox.job("none", [], 20))
    ended = inbox.wait(3)
    assert ended["bad"] is error
    assert "prompt is empty" in str(ended["none"])
    expected = tiny.solo("base", prompt, 20)[1]
    assert inbox.tokens["good"] == expected
    assert inbox.tokens["bad"] == expected[: len(inbox.tokens["bad"])] != []


def test_a_pass_that_fails_ends_its_texts_alone(new_inbox, monkeypatch):
    """Texts of a model with sliding windows share no pass."""
    inbox, step = new_inbox(most_texts=4), Decoder.step

    def fails(self, plans, rules):
        if len(plans) > 1:
            raise ValueError("no memory")
        return step(self, plans, rules)

    monkeypatch.setattr(Decoder, "step", fails)
    prompt, other = random_prompt(9), speculative_model("sliding windows", seed=1)
    inbox.submit(
        inbox.job(0, prompt, 30),
        inbox.job(1, prompt, 30, "base:shared"),
        *(inbox.job(n, prompt, 30, "other", other) for n in (2, 3)),
    )
    ended = inbox.wait(4)
    assert [str(ended[n]) for n in range(2)] == ["no memory"] * 2
    assert inbox.tokens[2] == inbox.tokens[3] == plain_tokens(other.model, prompt, 30)
    turns = [key for key in inbox.order if key in (2, 3)]
    assert turns != sorted(turns)
    inbox.submit(inbox.job("next", prompt, 4))
    assert isinstance(inbox.wait(1)["next"], Finished)


def test_stopping_ends_all_texts(new_inbox):
    inbox = new_inbox(most_texts=1)
    jobs = [inbox.job(n, random_prompt(9), 2000) for n in range(3)]
    inbox.submit(*jobs)
    inbox.worker.stop()
    assert {one.status for one in inbox.wait(3).values()} == {503}
    with pytest.raises(RefusedError, match="the server is shutting down"):
        inbox.submit(*jobs)
