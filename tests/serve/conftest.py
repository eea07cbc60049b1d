"""One set of tiny models for all tests of the server."""

import anthropic
import openai
import pytest
from serving import CHAT, running, tiny_resident


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_resident(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def service(tiny):
    service = tiny.service()
    yield service
    service.worker.stop()


@pytest.fixture(scope="module")
def address(service):
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
    def write(model="base", messages=CHAT, **further):
        further = {"model": model, "messages": messages, "max_tokens": 12, **further}
        return openai_client.chat.completions.create(**further)

    return write
