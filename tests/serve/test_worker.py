"""The worker: texts beside others are those of solo runs; the queue; those who leave."""

import queue
import shutil
from collections import defaultdict, deque

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from random_models import plain_tokens, random_prompt, speculative_model
from serving import until

from specstream_mlx import load, stream_generate
from specstream_mlx.drafting.fixed import fixed_planner
from specstream_mlx.drafting.settings import draft_settings
from specstream_mlx.engine.sampling import Sampling
from specstream_mlx.engine.step import Decoder
from specstream_mlx.errors import VOCABULARY, UserError
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.request import Request
from specstream_mlx.scheduler import decode
from specstream_mlx.serve.decoding import Asked, Ended, Read, Watched, Written
from specstream_mlx.serve.resident import adapters_in, resident
from specstream_mlx.serve.worker import BusyError, Job, StoppedError, Worker


class Inbox:
    """Jobs, and what became of them."""

    def __init__(self, worker):
        self.worker, self.tokens, self.news = worker, defaultdict(list), queue.Queue()
        self.order = []

    def job(self, key, *asked, **further):
        def deliver(event):
            self.order.append(key)
            if isinstance(event, Written):
                self.tokens[key] += [token.id for token in event.tokens]
            elif not isinstance(event, Read):
                self.news.put((key, event))

        return Job(Asked(*asked, **further), deliver)

    def wait(self, count):
        return dict(self.news.get(timeout=60) for _ in range(count))


@pytest.fixture
def inbox(tiny):
    worker = Worker(tiny.tokenizer, most_texts=3, most_waiting=20)
    yield Inbox(worker)
    worker.stop()


def test_texts_beside_others_are_those_of_solo_runs(tiny, inbox):
    prompts = [random_prompt(30 + 7 * number, seed=number % 2) for number in range(3)]
    cases = [(name, p, t) for name in tiny.models for p in prompts for t in (0.0, 0.9)]
    jobs = [
        inbox.job(number, name, tiny.models[name], p, 12, Sampling(t), number)
        for number, (name, p, t) in enumerate(cases)
    ]
    inbox.worker.submit(jobs[:9])
    inbox.worker.submit(jobs[9:])
    ended = inbox.wait(len(cases))
    assert all(isinstance(one, Ended) for one in ended.values()), ended
    for number, (name, prompt, temperature) in enumerate(cases):
        text = tiny.solo(name, prompt, 12, temperature=temperature, seed=number)
        assert inbox.tokens[number] == text[1], cases[number]
    assert inbox.order != sorted(inbox.order)  # they did take turns


@pytest.mark.parametrize(
    ("who", "settings"), [("streams", {"tree_width": 1}), ("lookup", {"num_streams": 0})]
)
def test_who_drafted_what_was_accepted(who, settings, toy_directory):
    model, tokenizer = load(toy_directory / "base", adapter_path=toy_directory / "adapters" / "sql")
    text = "table t(name, city): for t with city Paris, what is the name?"
    asked = chat_prompt(tokenizer, text, model.prompt_template)
    answer = [one.token for one in stream_generate(model, tokenizer, asked, 16)]
    prompt = [*asked, *answer, *asked]  # lookup knows the way
    chosen = draft_settings(lookup=who == "lookup", **settings)
    fixed = fixed_planner(chosen, model, prompt)
    drafters = deque()
    request = Request(prompt, Watched(fixed, lambda: True, drafters), max_tokens=16)
    steps = list(decode(model, request))
    accepted = sum(len(step.tokens) - 1 for step in steps)
    assert accepted > 0
    assert list(drafters) == [who] * accepted


def test_prompts_that_begin_alike_are_read_once(tiny, inbox):
    start, model = random_prompt(700), tiny.models["base"]
    inbox.worker.submit([inbox.job("first", "base", model, start, 4, draft=False)])
    first = inbox.wait(1)["first"]
    assert first.cached_tokens == 0
    assert sum(key == "first" for key in inbox.order) > 4  # read in chunks
    longer = [*start, *inbox.tokens["first"], *random_prompt(5, seed=1)]
    inbox.worker.submit(
        [inbox.job(name, name, tiny.models[name], longer, 4) for name in tiny.models]
    )
    found = {name: one.cached_tokens for name, one in inbox.wait(3).items()}
    # The rows of the text's own tokens too, but the last, which was not read. An adapter without
    # LoRA has the base's rows, and its prompt, read behind the base's, is there but for one token.
    assert found == {"base": 703, "base:other": len(longer) - 1, "base:shared": 0}
    for name in tiny.models:
        assert inbox.tokens[name] == tiny.solo(name, longer, 4)[1]


def test_rows_that_are_kept_are_bounded(tiny):
    inbox = Inbox(Worker(tiny.tokenizer, kept_tokens=100))
    for seed in range(4):
        prompt = random_prompt(60, seed=seed)
        inbox.worker.submit([inbox.job(seed, "base", tiny.models["base"], prompt, 4)])
        inbox.wait(1)
        assert 60 <= inbox.worker.kept_tokens <= 100
        caches = [layer for *_, held in inbox.worker._prefixes._kept for layer in held.caches]
        arrays = [rows for layer in caches for rows in (layer.keys, layer.values)]
        rows = sum(array.shape[2] for array in arrays)  # and no room for more
        assert rows == 2 * len(tiny.models["base"].model.layers) * inbox.worker.kept_tokens
    inbox.worker.stop()


def test_the_queue_is_bounded(tiny):
    inbox = Inbox(Worker(tiny.tokenizer, most_texts=1, most_waiting=4))
    first = inbox.job("first", "base", tiny.models["base"], random_prompt(9), 2000)
    inbox.worker.submit([first])
    until(lambda: inbox.worker.decoding)
    jobs = [inbox.job(n, "base", tiny.models["base"], random_prompt(9), 2) for n in range(5)]
    with pytest.raises(BusyError) as error:
        inbox.worker.submit(jobs)  # none of them waits then
    assert error.value.retry_after >= 1
    inbox.worker.submit(jobs[:4])
    with pytest.raises(BusyError):
        inbox.worker.submit(jobs[4:])
    inbox.worker.cancel(first)
    assert sorted(inbox.wait(4)) == [0, 1, 2, 3]
    inbox.worker.stop()


def test_the_model_with_the_fewest_texts_is_next(tiny):
    inbox = Inbox(Worker(tiny.tokenizer, most_texts=2))
    first = inbox.job("first", "base", tiny.models["base"], random_prompt(9), 2000)
    inbox.worker.submit([first])
    until(lambda: "first" in inbox.order)
    names = ["base", "base", "base:shared", "base:other"]
    inbox.worker.submit([inbox.job(n, n, tiny.models[n], random_prompt(9), 2) for n in names])
    inbox.wait(4)
    inbox.worker.cancel(first)
    begun = [key for key in dict.fromkeys(inbox.order) if key != "first"]
    assert begun == ["base:shared", "base:other", "base"]
    inbox.worker.stop()


def test_who_leaves_makes_room(tiny):
    inbox = Inbox(Worker(tiny.tokenizer, most_texts=1, most_waiting=1))
    jobs = [
        inbox.job(n, "base", tiny.models["base"], random_prompt(9), 2000 if n < 2 else 2)
        for n in range(3)
    ]
    inbox.worker.submit(jobs[:1])
    until(lambda: inbox.worker.decoding)
    inbox.worker.submit(jobs[1:2])
    inbox.worker.cancel(jobs[1])
    assert inbox.worker.waiting == 0
    inbox.worker.submit(jobs[2:])
    inbox.worker.cancel(jobs[0])
    assert [*inbox.wait(1)] == [2]
    assert len(inbox.tokens[0]) < 2000
    inbox.worker.stop()


@pytest.mark.parametrize("error", [UserError("no more"), ValueError("a mistake")])
def test_a_text_that_fails_takes_no_other_along(error, tiny, inbox):
    def fails(tokens, logits):
        if len(tokens) > 15:
            raise error
        return logits

    base, prompt = tiny.models["base"], random_prompt(9)
    inbox.worker.submit(
        [
            inbox.job("good", "base", base, prompt, 20),
            inbox.job("bad", "base", base, prompt, 20, processors=[lambda: fails]),
        ]
    )
    assert inbox.wait(2)["bad"] is error
    expected = tiny.solo("base", prompt, 20)[1]
    assert inbox.tokens["good"] == expected
    assert inbox.tokens["bad"] == expected[: len(inbox.tokens["bad"])] != []


def test_a_pass_that_fails_ends_its_texts_alone(tiny, inbox, monkeypatch):
    step = Decoder.step

    def fails(self, plans, rules):
        if len(plans) > 1:
            raise ValueError("no memory")
        return step(self, plans, rules)

    monkeypatch.setattr(Decoder, "step", fails)
    prompt, other = random_prompt(9), speculative_model(seed=1)  # of another base
    models = tiny.models["base"], tiny.models["base:shared"], other
    inbox.worker.submit(
        [inbox.job(n, f"model {n}", model, prompt, 30) for n, model in enumerate(models)]
    )
    ended = inbox.wait(3)
    assert [str(ended[n]) for n in range(2)] == ["no memory"] * 2
    assert inbox.tokens[2] == plain_tokens(other.model, prompt, 30)
    inbox.worker.submit([inbox.job("next", "base", tiny.models["base"], prompt, 4)])
    assert isinstance(inbox.wait(1)["next"], Ended)


@pytest.mark.parametrize(("base", "most"), [("grouped heads, tied", 3), ("sliding windows", 1)])
def test_texts_of_one_model_share_a_pass_where_it_can(base, most, inbox, monkeypatch):
    """Elsewhere they take turns."""
    model, counts, step = speculative_model(base, seed=1), [], Decoder.step

    def counted(self, plans, rules):
        counts.append(len(plans))
        return step(self, plans, rules)

    monkeypatch.setattr(Decoder, "step", counted)
    prompts = [random_prompt(9 + number, seed=number) for number in range(3)]
    inbox.worker.submit([inbox.job(n, "base", model, p, 30) for n, p in enumerate(prompts)])
    inbox.wait(3)
    assert max(counts) == most
    assert inbox.order != sorted(inbox.order)
    for number, prompt in enumerate(prompts):
        assert inbox.tokens[number] == plain_tokens(model.model, prompt, 30)


def test_stopping_ends_all_texts(tiny):
    inbox = Inbox(Worker(tiny.tokenizer, most_texts=1))
    jobs = [inbox.job(n, "base", tiny.models["base"], random_prompt(9), 2000) for n in range(3)]
    inbox.worker.submit(jobs)
    inbox.worker.stop()
    assert all(isinstance(one, StoppedError) for one in inbox.wait(3).values())
    with pytest.raises(StoppedError):
        inbox.worker.submit(jobs)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_adapters_share_the_weights_of_the_base(tiny, tmp_path, dtype):
    names = "base", "base:shared"
    base, shared = (dict(tree_flatten(tiny.models[n].parameters())) for n in names)
    assert not [name for name in base if "lora" in name]
    assert [name for name in shared if "lora" in name]
    weights = sum(weight.nbytes for weight in base.values())
    path = shutil.copytree(tiny.models["base:shared"].adapter.path, tmp_path / "again")
    if dtype != mx.float32:
        for file in path.glob("*.safetensors"):
            stored = mx.load(str(file)).items()
            halved = {n: one if n == VOCABULARY else one.astype(dtype) for n, one in stored}
            mx.eval(halved)  # before the file is written over
            mx.save_safetensors(str(file), halved)
    mx.clear_cache()
    before = mx.get_active_memory()
    again = resident(tiny.models["base"], {"again": path})
    grown = mx.get_active_memory() - before
    # Once, in the dtype of the activations, whatever it was read in.
    adapter = again["base:again"].adapter
    assert adapter.nbytes == tiny.models["base:shared"].adapter.nbytes
    assert grown <= 1.1 * adapter.nbytes + 4096 < weights


def test_names_of_adapters_are_names(tiny, tmp_path):
    for name in ("../up", "a/b", "", ".hidden", "a b", "x" * 65):
        with pytest.raises(UserError, match="the adapter's name is"):
            resident(tiny.models["base"], {name: tmp_path})
    with pytest.raises(UserError, match="has no adapters"):
        adapters_in(tmp_path)
    folder = tiny.models["base:shared"].adapter.path.parent
    assert list(adapters_in(folder)) == ["shared", "streams"]
    with pytest.raises(UserError, match="has LoRA, expected lossless streams"):
        resident(tiny.models["base:shared"], {})
