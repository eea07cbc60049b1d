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
            responses, leaves = responses_of(model, tokenizer, text), text.get("leaves")
            first = group is None or group.rank() == 0
            tokens = [one.token for one in islice(responses, leaves if first else None)]
            responses.close()
            found.append(tokens[:leaves])
    return found


def responses_of(model, tokenizer, text):
    """The responses of one text."""
    own = {name: text[name] for name in text if name not in ("adapter", "seed", "leaves")}
    model.swap_adapter(text.get("adapter"))
    return stream_generate(model, tokenizer, sampler=sampler_of(text), **own)


def sampler_of(text):
    return keyed_sampler(text["seed"], temp=0.8) if "seed" in text else None


def gap_at(job, text, index):
    """How far the token at ``index`` was from being another one: in log-probability, with noise."""
    model, tokenizer = load(job["model"], weights=job.get("weights", "auto"))
    responses = responses_of(model, tokenizer, text)
    scores = next(islice(responses, index, None)).logprobs
    if sampler := sampler_of(text):
        scores = sampler.scores(scores, index)
    second, best = mx.sort(scores)[-2:].tolist()
    return best - second


if __name__ == "__main__":
    group = mx.distributed.init() if "MLX_RANK" in os.environ else None
    with open(sys.argv[1], encoding="utf-8") as file:
        print(json.dumps(texts_of(json.load(file), group)), flush=True)
