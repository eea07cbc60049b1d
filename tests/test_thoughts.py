"""Texts split into thoughts and the rest, however they come."""

import mlx.core as mx
import pytest
from mlx_lm.tool_parsers import json_tools
from thinking import wrapped

from specstream_mlx.serve.tool_calls import ReplyParser
from specstream_mlx.thoughts import AfterThought, Thought, ThoughtSplitter

CALL = '<tool_call>{"name": "wipe", "arguments": {"where": "<think>"}}</tool_call>'
T = Thought


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        ("", "plain <text>\n", ["plain <text>\n"]),
        ("", "  \n", ["  \n"]),
        ("", "", []),
        ("", "<think>\nhm, so\n\n</think>\n\nyes \n", [T("hm, so"), "yes \n"]),
        ("", "\n <think>hm</think>yes", [T("hm"), "yes"]),
        ("", "<think>\n\n</think>\n\nyes", ["yes"]),
        ("", "<think>hm", [T("hm")]),
        ("", "<think>a </thi b", [T("a </thi b")]),
        ("", "<think>a</thi", [T("a</thi")]),
        ("", "a <think", ["a <think"]),
        ("", "so <think>hm</think> yes", ["so", T("hm"), "yes"]),
        ("", "</think> yes", ["</think> yes"]),
        ("<think>\n", "hm\n</think>\n\nyes", [T("hm"), "yes"]),
        ("<think>\n", "hm", [T("hm")]),
        ("<think>\n\n</think>\n\n", "yes", ["yes"]),
        ("", f"<think>I could {CALL} </think>No.", [T(f"I could {CALL}"), "No."]),
        ("", f"<think>hm</think>\nLet me {CALL}\n", [T("hm"), "Let me", "wipe"]),
        ("", f"<think>hm</think>{CALL}<think>so</think>done", [T("hm"), "wipe", T("so"), "done"]),
    ],
)
def test_texts_are_split_however_they_come(opened, text, expected):
    tokenizer = wrapped()
    prompt = tokenizer.encode(f"<|user|>hi<|end|><|assistant|>{opened}")
    tools = [{"type": "function", "function": {"name": "wipe"}}]
    for size in (1, 2, 5, len(text) + 1):
        parser, found = ReplyParser(tokenizer, tools, prompt), []
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        for piece in (*(p for one in pieces for p in parser.add(one)), *parser.end()):
            before = found[-1] if found else None
            if isinstance(piece, dict):
                found.append(piece["function"]["name"])
            elif isinstance(piece, Thought) and isinstance(before, Thought):
                found[-1] = Thought(before.text + piece.text)
            elif isinstance(piece, str) and isinstance(before, str) and before != "wipe":
                found[-1] += piece
            else:
                found.append(piece)
        assert found == expected
        assert len(parser.calls) == expected.count("wipe")
        splitter = ThoughtSplitter(tokenizer, prompt)
        parts = [p for one in pieces for _, p in splitter.add(one)] + [p for _, p in splitter.end()]
        assert "".join(parts) == text


def test_marks_are_mlx_lms():
    tokenizer = wrapped()
    assert (tokenizer.think_start, tokenizer.think_end) == ("<think>", "</think>")
    assert tokenizer.tool_call_start == json_tools.tool_call_start


def only_b(tokens, logits):
    """Allows b alone, and says how many tokens it got."""
    SEEN.append(tokens.tolist())
    return mx.where(mx.arange(logits.shape[-1]) == ord("b"), logits, -mx.inf)


SEEN = []


@pytest.mark.parametrize(
    ("opened", "may_think", "said", "content", "allowed"),
    [
        ("", True, "", "", ["<", "<think>", "b"]),  # either it thinks or it begins
        ("", True, "<", None, ["think>", "t"]),
        ("", True, "<thi", None, ["n"]),
        ("", True, "<think>", None, None),
        ("", True, "<think>hm </thin", None, None),
        ("", True, "<think>hm</think>", "", ["b"]),
        ("", True, "<think>hm</think>b</think>b", "b</think>b", ["b"]),
        ("", True, "b<think>", "b<think>", ["b"]),
        ("", False, "", "", ["b"]),
        ("", False, "<think>", "<think>", ["b"]),
        ("<think>\n", True, "hm", None, None),
        ("<think>\n", True, "hm</think>b", "b", ["b"]),
        ("<think>\n\n</think>\n\n", False, "b", "b", ["b"]),
    ],
)
def test_a_mask_begins_after_the_thought(opened, may_think, said, content, allowed):
    tokenizer = wrapped()
    prompt = tokenizer.encode(f"<|assistant|>{opened}")
    vocab = tokenizer.get_vocab()
    for pieces in ([said], [*said]):  # marks as one token, and as several
        path = [token for piece in pieces for token in tokenizer._tokenizer.encode(piece)]
        mask = AfterThought(only_b, tokenizer, prompt, may_think)
        for size in (0, len(path) // 2, len(path), len(path)):
            SEEN.clear()
            tokens = mx.array([*prompt, *path[:size]])
            left = mask(tokens, mx.zeros((1, len(vocab) + 300)))[0]
        free = {n for n, value in enumerate(left.tolist()) if value == 0}
        if allowed is None:
            assert len(free) == len(vocab) + 300 and not SEEN
            continue
        expected = {ord("b")} if "b" in allowed else set()
        assert free - expected >= {vocab[one] for one in allowed if one != "b" and one in vocab}
        if allowed == ["b"]:
            assert free == expected
        if content is not None:
            [seen] = SEEN
            assert tokenizer.decode(seen[len(prompt) :]) == content
