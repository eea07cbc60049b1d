"""Random mixes of texts that come and go: each is that of its solo run, whoever shares its pass.

``MIXES=250 python -m pytest -m slow tests/serve/test_mixes.py`` tries 250 of them.
"""

import json
import os
import random
from dataclasses import replace
from functools import partial
from threading import Event

import pytest
from random_models import random_prompt
from serving import Resident
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import stream_generate
from specstream_mlx.engine.sampling import Sampling, keyed_sampler
from specstream_mlx.engine.several_adapters import Gathered
from specstream_mlx.engine.step import Decoder
from specstream_mlx.serve.client_request import ClientRequest
from specstream_mlx.serve.decoding import Finished
from specstream_mlx.serve.worker import Worker

STARTS = [random_prompt(length, seed=length) for length in (1, 9, 40, 70)]
SCHEMAS = [
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 4},
    {"enum": ["the team", "noon", 7, True, None, 2.5]},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "right": {"type": "boolean"}},
        "required": ["name", "right"],
        "additionalProperties": False,
    },
]
SLOW = range(8, int(os.environ.get("MIXES", "100")), 10)
STREAMS = {
    "stream_init": "linear",
    "stream_init_rank": 4,
    "stream_mlp": "adapter",
    "stream_adapter_rank": 4,
    "stream_head": "conditioned",
    "stream_head_rank": 8,
    "draft_vocabulary": 64,
    "pruner_rank": 4,
}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """A base with adapters: shared ones, lossless streams, LoRA alone, and both."""
    folder = tmp_path_factory.mktemp("mixes")
    base = tiny_llama_directory(folder / "model", max_position_embeddings=2048)
    found = {}
    for seed in range(1, 4):
        rank = {"lora_rank": seed, "lora_scale": 2.0}
        kinds = {"shared": {"mode": "shared", **rank, **STREAMS}, "lossless": {}, "plain": rank}
        kinds |= {"both": {**rank, **STREAMS}}
        for kind, fields in kinds.items():
            path = stream_adapter_directory(folder / f"{kind}{seed}", base, seed=seed, **fields)
            if kind == "plain":
                (path / "speculative_streaming.safetensors").unlink()
                config = json.loads((path / "adapter_config.json").read_text())
                del config["speculative_streaming"]
                (path / "adapter_config.json").write_text(json.dumps(config))
            found[path.name] = path
    service = Resident(base, found["lossless1"], **found).service()
    yield service
    service.worker.stop()


@pytest.fixture
def passes(monkeypatch):
    """How many texts each step had, and how many adapters each pass of several."""
    texts, adapters, step, gather = [], [], Decoder.step, Gathered.gather

    def counted(self, plans, rules):
        texts.append(len(rules))
        return step(self, plans, rules)

    def gathered(self, ones):
        adapters.append(len({id(one.streams or one.model) for one in ones}))
        gather(self, ones)

    monkeypatch.setattr(Decoder, "step", counted)
    monkeypatch.setattr(Gathered, "gather", gathered)
    return texts, adapters


def solo(job, service):
    """(tokens, text, reason) of a text by itself, without drafts."""
    client_request = job.client_request
    settings = {"logits_processors": job.processors, "stop": client_request.stop}
    settings["sampler"] = keyed_sampler(job.seed, sampler=client_request.sampling)
    asked = job.model, service.tokenizer, job.prompt, job.max_tokens
    found = list(stream_generate(*asked, speculation=False, **settings))
    return [one.token for one in found], "".join(one.text for one in found), found[-1].finish_reason


def random_job(rng, service, names):
    schema = rng.choice(SCHEMAS) if rng.random() < 0.3 else None
    client_request = ClientRequest(
        rng.choice(["base", "base", *names]),
        [*rng.choice(STARTS), *random_prompt(rng.randint(1, 9), seed=rng.randint(0, 3))],
        40 if schema else rng.randint(1, 24),
        sampling=Sampling(rng.choice([0.0, 0.7, 1.0]), rng.choice([0.0, 0.9])),
        seed=rng.randint(0, 99),
        draft=rng.random() < 0.8,
        top_logprobs=rng.choice([None, None, 2]),
        schema=schema,
    )
    (job,) = service.jobs(client_request)
    if rng.random() < 0.2:
        text = solo(job, service)[1]
        at = rng.randint(0, max(0, len(text) - 2))
        job.client_request = replace(client_request, stop=[text[at : at + 2] or "x"])
    return job


def check(service, seed):
    """Texts are sent whenever so many steps of others have come; some leave in the middle."""
    rng = random.Random(seed)
    kind = rng.choice(["shared", "lossless", "plain", "both", ""])  # most texts are of one layout
    names = [name for name in service.models if kind in name] or [*service.models]
    jobs = [random_job(rng, service, names) for _ in range(rng.randint(3, 7))]
    leaving = {n: rng.randint(1, 12) for n in range(len(jobs)) if rng.random() < 0.2}
    settings = {"most_texts": rng.randint(2, 5), "kept_tokens": rng.choice([0, 400])}
    worker = Worker(service.models["base"], service.tokenizer, **settings)
    tokens, words, ends = [[] for _ in jobs], ["" for _ in jobs], {}
    waiting, over, events = list(jobs), Event(), 0

    def submit():
        worker.submit([waiting.pop(0) for _ in range(min(len(waiting), rng.randint(1, 2)))])

    def deliver(number, event):
        nonlocal events
        events += 1
        if isinstance(event, list):
            tokens[number] += [token.id for token in event]
            words[number] += "".join(token.text for token in event)
            if len(tokens[number]) >= leaving.get(number, 1000) and number not in ends:
                worker.cancel(jobs[number])
                ends[number] = None
        elif not isinstance(event, int):
            ends[number] = event
        if waiting and (events % 4 == 0 or len(ends) == len(jobs) - len(waiting)):
            submit()
        if len(ends) == len(jobs):
            over.set()

    for number, job in enumerate(jobs):
        job.deliver = partial(deliver, number)
    submit()
    try:
        assert over.wait(60)
    finally:
        worker.stop()
    for number, job in enumerate(jobs):
        expected, text, reason = solo(job, service)
        end = ends[number]
        if end is None:
            assert tokens[number] == expected[: len(tokens[number])] != [], (seed, number)
            continue
        assert isinstance(end, Finished), (seed, number, end)
        assert tokens[number] == expected, (seed, number)
        last, drafted = end.last, sum(end.drafted_by.values())
        assert (words[number], last.finish_reason) == (text, reason)
        assert last.generation_tokens == len(expected) <= last.target_calls + last.accepted_tokens
        assert drafted == (last.accepted_tokens if job.client_request.draft else 0)


@pytest.mark.parametrize(
    "seeds",
    [range(8), *(pytest.param(range(n, n + 10), marks=pytest.mark.slow) for n in SLOW)],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_each_text_is_that_of_its_solo_run(seeds, adapters, passes):
    shared = []
    for seed in seeds:
        for counts in passes:
            counts.clear()
        check(adapters, seed)
        shared.append([max(counts, default=1) > 1 for counts in passes])
    assert all(sum(some) >= len(seeds) // 2 for some in zip(*shared, strict=True)), shared
