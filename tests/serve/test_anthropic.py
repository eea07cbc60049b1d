"""The unmodified ``anthropic`` client."""

import anthropic
import pytest
from serving import CHAT

ASK = {"model": "base", "max_tokens": 12, "messages": CHAT}


def test_a_message_is_what_generate_writes(anthropic_client, tiny):
    text, tokens = tiny.solo("base", CHAT, 12)
    found = anthropic_client.messages.create(**ASK)
    assert [block.text for block in found.content] == [text]
    assert found.stop_reason == "max_tokens"
    assert found.usage.output_tokens == len(tokens)
    assert found.specstream["target_calls"] >= 1


def test_a_stream_is_the_same_text(anthropic_client, tiny):
    turns = [{"role": "system", "content": "be brief"}, *CHAT]
    parts = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    with anthropic_client.messages.stream(**ASK, system=parts) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == tiny.solo("base", turns, 12)[0]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12


def test_which_stop_sequence_was_met(anthropic_client, tiny):
    text, _ = tiny.solo("base", CHAT, 12)
    found = anthropic_client.messages.create(**ASK, stop_sequences=["never so", text[5:7]])
    assert found.content[0].text == text[: text.index(text[5:7])]
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", text[5:7])


def test_errors_have_their_form(anthropic_client):
    with pytest.raises(anthropic.NotFoundError) as error:
        anthropic_client.messages.create(**ASK | {"model": "base:none"})
    assert error.value.body["error"]["type"] == "not_found_error"
    for fields, sentence in (
        ({"thinking": {"type": "adaptive"}}, "thinking is not supported"),
        ({"max_tokens": 0}, "max_tokens is 0, expected"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=sentence):
            anthropic_client.messages.create(**ASK | fields)
