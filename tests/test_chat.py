"""Conversations: each reply is that to all messages, and only new tokens are read for it."""

import json

import pytest
from command_line import run

from specstream_mlx import Chat, UserError, generate, load


@pytest.fixture(scope="module")
def pair(toy_directory):
    return load(toy_directory / "base", adapter_path=toy_directory / "streams")


def said(chat, text, **options):
    return "".join(response.text for response in chat.reply(text, max_tokens=12, **options))


def test_replies_are_those_to_all_messages_and_only_new_tokens_are_read(pair):
    """The cache may hold more than was said: drafts of the last step, right but over the limit."""
    model, tokenizer = pair
    chat, known = Chat(model, tokenizer, system="Be brief."), 0
    for number, text in enumerate(["table t(name): list it", "and t(city)?", "thanks"]):
        messages = [*chat.messages, {"role": "user", "content": text}]
        responses = list(chat.reply(text, max_tokens=12))
        reply = "".join(response.text for response in responses)
        assert reply == generate(model, tokenizer, messages, max_tokens=12)
        assert chat.messages[:-1] == messages
        if number:  # all but what a template puts behind the reply
            assert chat.cache.reused >= known - 2
        known = responses[-1].prompt_tokens + responses[-1].generation_tokens - 1
        assert len(chat.cache) >= known


def test_a_reply_counts_as_far_as_it_was_read(pair):
    chat = Chat(*pair)
    reply = chat.reply("table t(name): list it", max_tokens=12)
    parts = [next(reply).text for _ in range(3)]
    reply.close()
    assert chat.messages[-1] == {"role": "assistant", "content": "".join(parts)}
    chat.reply("never read").close()
    assert len(chat.messages) == 2
    chat.clear()
    assert chat.messages == []


def test_an_adapters_turns_stand_alone(toy_directory):
    model, tokenizer = load(toy_directory / "base", adapter_path=toy_directory / "adapters" / "sql")
    chat = Chat(model, tokenizer)
    first = said(chat, "table t(name): list it")
    said(chat, "table u(city): list it")
    assert said(chat, "table t(name): list it") == first
    tokenizer.has_chat_template = False
    with pytest.raises(UserError, match="no chat template"):
        Chat(model, tokenizer)


def test_the_command_answers_lines_and_takes_commands(tmp_path, toy_directory):
    saved, notes = tmp_path / "chat.json", tmp_path / "notes.txt"
    notes.write_text("years of work")
    lines = ["/stats", "table t(name): list it", "/stats", "/nosuch"]
    lines += ["/adapter nosuch", "and t(city)?", "caf\udce9", "/help"]
    lines += [f"/save {saved}", f"/save {saved}", f"/save {notes}", "/quit", "x"]
    arguments = ["--model", toy_directory / "base", "--adapter-path", toy_directory / "streams"]
    arguments += ["--max-tokens", 3]
    found = run("chat", *arguments, stdin="\n".join(lines).encode(errors="surrogateescape"))
    assert found.exit_code == 0
    messages = json.loads(saved.read_text())
    assert notes.read_text() == "years of work"
    assert found.stderr.count(f"Saved to {saved}") == 2
    assert [m["content"] for m in messages if m["role"] == "user"] == [lines[1], lines[5]]
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    assert found.stdout == "".join(reply + "\n" for reply in replies)
    for sentence in (
        "error: /stats was given before the first reply",
        "error: /nosuch is no command; /help lists them",
        "error: the adapter directory nosuch does not exist",
        "error: the line is not UTF-8 text: byte 0xe9 at 3",
        "(cut off at --max-tokens 3)",
        "Ctrl-C stops a reply",
        f"error: {notes} exists and is no saved chat, expected a new file",
    ):
        assert sentence in found.stderr
