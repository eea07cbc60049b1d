"""Conversations: each reply is that to all messages, and only new tokens are read for it."""

import json
import re
import shutil
import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest
from command_line import run
from thinking import OPENING, SWITCHED, thinking_tokenizer
from tiny_models import VOCAB_SIZE, tiny_llama_directory

from specstream_mlx import Chat, GenerationResponse, UserError, generate, load
from specstream_mlx.cli import chat as command
from specstream_mlx.cli.generate import GenerationRun, _generate
from specstream_mlx.cli.options import OutputOptions
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.wrapped import Wrapped
from specstream_mlx.thoughts import ThoughtTokens


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


class Planted:
    """A logits processor that lets a reply be nothing but a text."""

    def __init__(self, tokenizer, text):
        self.ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        self.prompt = []

    def __call__(self, tokens, logits):
        self.prompt = self.prompt or tokens.tolist()
        place = min(len(tokens) - len(self.prompt), len(self.ids) - 1)
        return mx.where(mx.arange(logits.shape[-1]) == self.ids[place], logits, -mx.inf)


def thinking_base(folder, template):
    base = tiny_llama_directory(folder, vocab_size=VOCAB_SIZE + 8)
    thinking_tokenizer(template).save_pretrained(base)
    return base


@pytest.mark.parametrize("template", [SWITCHED, OPENING])
def test_thoughts_are_not_sent_again(template, tmp_path):
    model, tokenizer = load(thinking_base(tmp_path / "base", template))
    chat, text = Chat(model, tokenizer), "hm\n</think>\n\nyes, it is"
    planted = Planted(tokenizer, text if template == OPENING else f"<think>\n{text}")
    of_thought = ["", ""]
    for response in chat.reply("is it noon?", logits_processors=[planted]):
        of_thought[chat.is_thinking] += response.text
    assert "".join(reversed(of_thought)) == tokenizer.decode(planted.ids[:-1])
    assert of_thought[True].endswith("hm\n</think>") and of_thought[False] == "\n\nyes, it is"
    reply = {"role": "assistant", "content": "yes, it is", "reasoning_content": "hm"}
    assert chat.messages[-1] == reply
    planted = Planted(tokenizer, "yes")
    assert said(chat, "and now?", logits_processors=[planted]) == "yes"
    sent = tokenizer.decode(planted.prompt)
    assert "yes, it is" in sent and "hm" not in sent
    # Nobody who wants no thoughts gets some.
    chat, planted = Chat(model, tokenizer, thinking=False), Planted(tokenizer, "yes")
    said(chat, "is it noon?", logits_processors=[planted])
    assert tokenizer.decode(planted.prompt).endswith("<think>\n\n</think>\n\n")
    assert chat.messages[-1] == {"role": "assistant", "content": "yes"}


def test_thoughts_are_dimmed_and_left_out(tmp_path, monkeypatch, capsys):
    base = thinking_base(tmp_path / "base", SWITCHED)
    flags = ("--model", base, "--temp", 0, "-m", 1)
    sizes = []
    for flag in ((), ("--no-thinking",)):
        found = run("generate", *flags, "-p", "is it noon?", *flag)
        sizes.append(int(re.search(r"^Prompt: (\d+) tokens", found.stderr, re.M)[1]))
        assert run("chat", *flags, *flag, stdin="is it noon?\n/quit\n").exit_code == 0
    tokenizer = load(base)[1]
    empty = tokenizer.encode("<think>\n\n</think>\n\n", add_special_tokens=False)
    assert sizes[1] - sizes[0] == len(empty)

    pieces = ["<think>", "hm", "</think>", "yes"]
    responses = [GenerationResponse(one, 5, None, False, 1, 1.0, 1, 1.0, 1.0) for one in pieces]
    for number, response in enumerate(responses):
        response.target_calls = response.generation_tokens = number + 1
    nothing = *("model", None, "lossless", "", "keyed", None, 9), lambda show: iter(responses)
    for colours, expected in (
        ("1", "\x1b[2m<think>hm</think>\x1b[0myes\n"),
        ("", "".join(pieces) + "\n"),
    ):
        monkeypatch.setenv("FORCE_COLOR", colours)
        thoughts = ThoughtTokens(tokenizer, [5])
        _generate(GenerationRun(*nothing, thoughts=thoughts), OutputOptions(quiet=True))
        assert capsys.readouterr().out == expected


def test_the_command_answers_lines_and_takes_commands(tmp_path, toy_directory):
    saved, notes = tmp_path / "chat.json", tmp_path / "notes.txt"
    notes.write_text("years of work")
    lines = ["/stats", "table t(name): list it", "/stats", "/nosuch"]
    lines += ["/adapter nosuch", "and t\\", "(city)?", "caf\udce9", "/help"]
    lines += [f"/adapter {toy_directory / 'adapters' / 'sql'}", "/adapter", "/adapter none"]
    lines += [f"/save {saved}", f"/save {saved}", f"/save {notes}", "/quit", "x"]
    arguments = ["--model", toy_directory / "base", "--adapter-path", toy_directory / "streams"]
    arguments += ["--max-tokens", 3, "--verbose"]
    typed = "\n".join(lines).replace("/stats\n", "/stats\r\n")  # as from another system
    found = run("chat", *arguments, stdin=typed.encode(errors="surrogateescape"))
    assert found.exit_code == 0
    messages = json.loads(saved.read_text())
    assert notes.read_text() == "years of work"
    assert found.stderr.count(f"Saved to {saved}") == 2
    assert [m["content"] for m in messages if m["role"] == "user"] == [lines[1], "and t\n(city)?"]
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    assert found.stdout == "".join(reply + "\n" for reply in replies)
    assert found.stderr.count("\nStreams guessed in ") == 3  # two replies, and /stats
    for sentence in (
        "error: /stats was given before the first reply",
        "error: /nosuch is no command; /help lists them",
        "error: there is no adapter 'nosuch', expected one of ",
        # an adapter of one task takes the likeliest tokens, so nothing is said of drawing
        f" with {toy_directory / 'adapters' / 'sql'}\nAdapters: none, ",
        f"\nIn use: {toy_directory / 'adapters' / 'sql'}\n",
        f"Talking to {toy_directory / 'base'}\nDrawing with --temp 0.7, ",
        "error: the line is not UTF-8 text: byte 0xe9 at 3",
        "(cut off at --max-tokens 3)",
        "Ctrl-C stops a reply",
        f"error: {notes} exists and is no saved chat, expected a new file",
    ):
        assert sentence in found.stderr


@pytest.mark.parametrize(
    ("said", "flags", "drawn"),
    [
        ({"temperature": 0.6, "top_k": 20}, (), "--temp 0.6, --top-k 20 (the model's own)"),
        ({"temperature": 0.6}, ("--top-p", 0.5), "--temp 0.6, --top-p 0.5 (the model's own)"),
        ({}, (), "--temp 0.7, --top-p 0.95 (the model names none)"),
        ({"do_sample": False, "temperature": 0.6}, (), None),
        ({"temperature": 0.6}, ("--temp", 0), None),
    ],
)
def test_replies_are_drawn_as_the_models_makers_do(said, flags, drawn, toy_directory, tmp_path):
    base = shutil.copytree(toy_directory / "base", tmp_path / "base")
    (base / "generation_config.json").write_text(json.dumps(said))
    said_first = run("chat", "--model", base, *flags, stdin="/quit").stderr.splitlines()[1:]
    assert said_first == ([] if drawn is None else [f"Drawing with {drawn}"])
    (base / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    refused = run("chat", "--model", base, stdin="/quit").stderr
    assert "generation_config.json: temperature is 'hot', expected a number" in refused


def test_turns_at_a_terminal(monkeypatch, capsys):
    """What is pasted is one turn; Ctrl-C drops what was typed, and twice with nothing leaves."""
    ctrl_c = KeyboardInterrupt
    keys = ["a", "b", "", "c\\", "d", ctrl_c, "e\\", ctrl_c, "/stats", "f", ctrl_c, "g"]
    keys += [ctrl_c, "typed", ctrl_c, ctrl_c, ctrl_c]
    pasted = iter([True, True, False, False, False, False, False, False])

    typed = [""]

    def press(prompt):
        typed[0] = keys.pop(0) if keys[0] == "typed" else ""
        key = keys.pop(0)
        if key is ctrl_c:
            raise key
        return key

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", press)
    monkeypatch.setattr("readline.get_line_buffer", lambda: typed[0])
    monkeypatch.setattr(command, "_is_more", lambda: next(pasted))
    assert list(command._lines()) == ["a\nb\n", "c\nd", "/stats", "f", "g"]
    assert keys == []
    assert capsys.readouterr().err == 4 * "Ctrl-C again leaves, as Ctrl-D and /quit do\n"


def test_words_wrap(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "11")
    printed = Wrapped()
    for piece in ("one tw", "o thr", "ee four\nfive  ", "a" * 12, " six \u4f60\u597d\u4f60\u597d"):
        printed.write(piece)
    printed.flush()
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == [
        *("one two", "three four", "five", "a" * 12, "six \u4f60\u597d\u4f60", "\u597d")
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    note("one two three four\n  at /a/long-directory")
    assert capsys.readouterr().err == "one two\nthree four\n  at\n  /a/long-directory\n"
    monkeypatch.setenv("COLUMNS", "50")
    for line in run("write", "--help").stdout.splitlines():
        assert len(line) <= 50 or line[:50].isspace() or " " not in line.strip(), line
