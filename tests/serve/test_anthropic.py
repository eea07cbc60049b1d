"""The unmodified ``anthropic`` client."""

import anthropic
import pytest

CHAT = [{"role": "user", "content": "please send the report to the team"}]


@pytest.fixture(scope="module")
def client(address):
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_is_what_generate_writes(client, tiny):
    text, tokens = tiny.solo("base", CHAT, 12)
    found = client.messages.create(model="base", max_tokens=12, messages=CHAT)
    assert [block.text for block in found.content] == [text]
    assert found.stop_reason == "max_tokens"
    assert found.usage.output_tokens == len(tokens)
    assert found.specstream["target_calls"] >= 1


def test_a_stream_is_the_same_text(client, tiny):
    turns = [{"role": "system", "content": "be brief"}, *CHAT]
    parts = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    with client.messages.stream(model="base", max_tokens=12, messages=CHAT, system=parts) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == tiny.solo("base", turns, 12)[0]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12


def test_which_stop_sequence_was_met(client, tiny):
    text, _ = tiny.solo("base", CHAT, 12)
    found = client.messages.create(
        model="base", max_tokens=12, messages=CHAT, stop_sequences=["never so", text[5:7]]
    )
    assert found.content[0].text == text[: text.index(text[5:7])]
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", text[5:7])


def test_errors_have_their_form(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        client.messages.create(model="base:none", max_tokens=1, messages=CHAT)
    assert error.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="thinking is not supported"):
        client.messages.create(
            model="base", max_tokens=1, messages=CHAT, thinking={"type": "adaptive"}
        )
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is 0, expected"):
        client.messages.create(model="base", max_tokens=0, messages=CHAT)
