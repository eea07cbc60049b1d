"""One set of tiny models for all tests of the server."""

import pytest
from serving import Resident, running
from tiny_models import stream_adapter_directory, tiny_llama_directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A random base with streams, a shared adapter and one that is streams alone."""
    folder = tmp_path_factory.mktemp("serve")
    base = tiny_llama_directory(folder / "model", max_position_embeddings=2048)
    streams = stream_adapter_directory(folder / "streams", base)
    shared = stream_adapter_directory(
        folder / "shared",
        base,
        mode="shared",
        lora_rank=4,
        seed=1,
        prompt_template="Say it again: {text}",
    )
    return Resident(base, streams, shared=shared, other=streams)


@pytest.fixture(scope="session")
def address(tiny):
    """Where a server of them listens."""
    with running(tiny.service()) as address:
        yield address
