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
            text = dict(text)
            model.swap_adapter(text.pop("adapter", None))
            prompt, seed = text.pop("prompt", "the meeting is at noon"), text.pop("seed", None)
            sampler = None if seed is None else keyed_sampler(seed, temp=0.8)
            leaves = text.pop("leaves", None)
            first = group is None or group.rank() == 0
            responses = stream_generate(model, tokenizer, prompt, sampler=sampler, **text)
            tokens = [one.token for one in islice(responses, leaves if first else None)]
            responses.close()
            found.append(tokens[:leaves])
    return found


if __name__ == "__main__":
    group = mx.distributed.init() if "MLX_RANK" in os.environ else None
    with open(sys.argv[1], encoding="utf-8") as file:
        print(json.dumps(texts_of(json.load(file), group)), flush=True)
