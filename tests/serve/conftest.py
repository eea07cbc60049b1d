"""One set of tiny models for all tests of the server."""

import anthropic
import openai
import pytest
from serving import CHAT, Resident, running
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


@pytest.fixture(scope="module")
def service(tiny):
    """What the server at ``address`` serves."""
    service = tiny.service()
    yield service
    service.worker.stop()


@pytest.fixture(scope="module")
def address(service):
    """Where a server listens."""
    with running(service) as address:
        yield address


@pytest.fixture(scope="module")
def openai_client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(address):
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def chat(openai_client):
    """Writes a chat with OpenAI's client."""

    def write(model="base", messages=CHAT, max_tokens=12, **further):
        return openai_client.chat.completions.create(
            model=model, messages=messages, max_tokens=max_tokens, **further
        )

    return write
