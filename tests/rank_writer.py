"""One rank, or a process by itself: writes the texts of jobs and prints their tokens as JSON.

A job has a ``model``, and texts: each with an ``adapter``, a ``prompt``, a ``seed`` to draw with, a
number of tokens at which rank 0 ``leaves``, and arguments of ``stream_generate``.
"""

import json
import os
import sys
from itertools import islice

import mlx.core as mx

from specstream_mlx import keyed_sampler, load, stream_generate


def texts_of(jobs, group=None):
    """The tokens of every text."""
    found = []
    for job in jobs:
        model, tokenizer = load(job["model"], weights=job.get("weights", "auto"), group=group)
        for text in job["texts"]:
            responses = responses_of(model, tokenizer, text)
            leaves = text.get("leaves")
            first = group is None or group.rank() == 0
            tokens = [one.token for one in islice(responses, leaves if first else None)]
            responses.close()
            found.append(tokens[:leaves])
    return found


def responses_of(model, tokenizer, text):
    """The responses of one text."""
    text = {name: value for name, value in text.items() if name != "leaves"}
    model.swap_adapter(text.pop("adapter", None))
    prompt, sampler = text.pop("prompt"), sampler_of(text.pop("seed", None))
    return stream_generate(model, tokenizer, prompt, sampler=sampler, **text)


def sampler_of(seed):
    return None if seed is None else keyed_sampler(seed, temp=0.8)


def gap_at(job, text, index):
    """How far the token at ``index`` was from being another one: in log-probability, with noise."""
    model, tokenizer = load(job["model"], weights=job.get("weights", "auto"))
    responses = responses_of(model, tokenizer, text)
    scores = next(islice(responses, index, None)).logprobs
    if "seed" in text:
        scores = sampler_of(text["seed"]).scores(scores, index)
    second, best = mx.sort(scores)[-2:].tolist()
    return best - second


if __name__ == "__main__":
    group = mx.distributed.init() if "MLX_RANK" in os.environ else None
    with open(sys.argv[1], encoding="utf-8") as file:
        print(json.dumps(texts_of(json.load(file), group)), flush=True)
