"""A server on a free port, and the texts that it must write."""

import time
from contextlib import contextmanager

from tiny_models import stream_adapter_directory, tiny_llama_directory

from benchmarks.server_load import served
from specstream_mlx import load, stream_generate
from specstream_mlx.engine.sampling import keyed_sampler
from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.service import Service, resident

CHAT = [{"role": "user", "content": "please send the report to the team"}]


class Resident:
    """A base with lossless streams and its adapters, by name, loaded once for many servers."""

    def __init__(self, base, streams, **adapters):
        model, self.tokenizer = load(base, adapter_path=streams)
        self.models = resident(model, adapters)

    def service(self, most_tokens=400, patience=5.0, **worker):
        return Service(self.models, self.tokenizer, most_tokens, patience, **worker)

    def solo(self, name, prompt, max_tokens, temperature=0.0, seed=0, **arguments):
        """(text, token ids) that ``stream_generate`` alone writes, with drafts of a fixed shape."""
        asked = self.models[name], self.tokenizer, prompt, max_tokens
        arguments |= {"sampler": keyed_sampler(seed, temperature), "tree_size": 4}
        found = list(stream_generate(*asked, **arguments))
        return "".join(one.text for one in found), [one.token for one in found]


def tiny_resident(folder):
    """A random base with streams, a shared adapter and one that is streams alone."""
    base = tiny_llama_directory(folder / "model", max_position_embeddings=2048)
    streams = stream_adapter_directory(folder / "streams", base)
    fields = {"mode": "shared", "lora_rank": 4, "prompt_template": "Say it again: {text}"}
    shared = stream_adapter_directory(folder / "shared", base, seed=1, **fields)
    return Resident(base, streams, shared=shared, other=streams)


def running(service, page=None):
    return serving(make_app(service, page))


@contextmanager
def serving(app):
    """Serve an application, and yield the address."""
    with served(app) as port:
        yield f"http://127.0.0.1:{port}"


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
