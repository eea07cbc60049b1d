"""Training data of both trainers, in mlx-lm's formats: sequences of prompt and completion."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.datasets import create_dataset

from ..errors import UserError, shown
from ..files import check_tokens, read_json_lines, template_error
from ..prompts import chat_prompt, encode_prompt, in_template
from ..terminal.notes import note
from .batches import Item

_FORMATS = "a prompt and a completion, messages of which the assistant's is the last, or a text"
_MARKS = "0", "1"  # answers that begin otherwise; one of them begins otherwise than any other


def read_split(
    path: Path,
    tokenizer: TokenizerWrapper,
    max_seq_length: int,
    vocab_size: int,
    template: str | None = None,
) -> list[Item]:
    """Read a JSONL file of one of mlx-lm's formats; what is too long is left out, with a note.

    These are ``{"prompt": .., "completion": ..}``, ``{"messages": [..]}`` and ``{"text": ..}``. A
    completion ends where its end token does. A text has no prompt: its streams run from its first
    token on. A line with a ``finish_reason`` is an answer of the base (``distil``), in its own
    ``tokens`` if they are there; if the reason is ``length`` it was cut and gets no end token.
    ``earlier`` lists the turns before a prompt, ``source`` says where it comes from; ``{text}`` in
    ``template`` is where a prompt goes.
    """
    rows = read_rows(path, template)
    if tokenizer.eos_token_id is None:
        raise UserError("the tokenizer has no end token, with which a completion ends")
    read = _reader(list(rows.values()), tokenizer, template)
    items, too_long = [], 0
    for number, row in rows.items():
        try:
            tokens, start = read(row)
        except UserError:
            raise
        except Exception as error:  # a template may raise anything
            raise UserError(f"{path}, line {number}: {template_error(error)}") from None
        tokens = _ended(list(tokens), start, tokenizer, row.get("finish_reason") == "length")
        check_tokens(f"{path}, line {number}", tokens, vocab_size)
        if len(tokens) > max_seq_length:
            too_long += 1
        elif len(tokens) > max(start, 1):
            items.append(Item(tokens, max(start, 1), row.get("source", "")))
    if not items:
        raise UserError(
            f"{path} has no sequence of at most {max_seq_length} tokens with a completion, "
            "expected at least one"
        )
    if too_long:
        note(f"{path}: {too_long} sequences over {max_seq_length} tokens left out")
    return items


def read_rows(path: Path, template: str | None = None) -> dict[int, dict[str, Any]]:
    """Read the objects of a JSONL file by line, which needs no tokenizer."""
    rows: dict[int, dict[str, Any]] = {}
    first = None
    for number, value in read_json_lines(path):
        kind = _kind(value)
        if kind is None or kind != (first := first or kind):
            expected = "as in the first line" if kind else _FORMATS
            raise UserError(f"{path}, line {number} is {shown(value)}, expected {expected}")
        rows[number] = value
    if first is None:
        raise UserError(f"{path} is empty, expected a JSON object on each line")
    if template is not None and first != "prompt":
        raise UserError(f"{path} has {first} and no prompts, expected no --prompt-template")
    return rows


def messages_of(turns: Sequence[str]) -> list[dict[str, str]]:
    """Return the messages of a conversation, whose user and model take turns."""
    roles = "user", "assistant"
    return [{"role": roles[place % 2], "content": turn} for place, turn in enumerate(turns)]


def _kind(value: Any) -> str | None:
    """Tell a line's format by the name of its field; ``None``: none of mlx-lm's formats."""
    match value:
        case {"prompt": str(), "completion": str()}:
            tokens, earlier = value.get("tokens", []), value.get("earlier", [])
            right = isinstance(tokens, list) and all(type(t) is int and t >= 0 for t in tokens)
            right = right and isinstance(value.get("source", ""), str)
            right = right and isinstance(earlier, list) and len(earlier) % 2 == 0
            return "prompt" if right and all(isinstance(turn, str) for turn in earlier) else None
        case {"messages": [*messages, {"role": "assistant", "content": _}]}:
            said = all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages)
            return "messages" if said and all("content" in m for m in messages) else None
        case {"text": str(text)} if text:
            return "text"
    return None


def _reader(
    rows: Sequence[Mapping[str, Any]], tokenizer: TokenizerWrapper, template: str | None
) -> Any:
    """Make the function that turns a line into tokens and the prompt's length."""
    kind = _kind(rows[0])
    if kind == "messages" and not tokenizer.has_chat_template:
        raise UserError("the data has messages, and the tokenizer no chat template to put them in")
    if kind == "text":
        return create_dataset(rows, tokenizer, SimpleNamespace()).process

    def read(row: Mapping[str, Any]) -> tuple[list[int], int]:
        if kind == "messages":
            return _conversation(tokenizer, row["messages"], row.get("tools"))
        earlier = row.get("earlier", [])
        turns = [*earlier, in_template(row["prompt"], template)]
        if tokenizer.has_chat_template and "finish_reason" not in row:
            messages = messages_of([*turns, row["completion"]])
            return _conversation(tokenizer, messages, row.get("tools"))
        if earlier:
            head = encode_prompt(tokenizer, messages_of(turns))
        else:
            head = chat_prompt(tokenizer, row["prompt"], template)
        written = row.get("tokens")
        if written is None:
            written = tokenizer.encode(row["completion"], add_special_tokens=False)
        return head + written, len(head)

    return read


def _conversation(
    tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, Any]], tools: Any
) -> tuple[list[int], int]:
    """Return a conversation's tokens, and the place among them where its last answer begins.

    That is the end of the prompt after which the answer would be decoded, where the conversation
    begins with it. Templates may render it otherwise once it is answered (without the thought that
    they open, with tools elsewhere); then it is the first place that depends on the answer.
    """
    render = partial(tokenizer.apply_chat_template, tools=tools, tokenize=False)
    *asked, answer = messages
    text, head = render(messages), render(asked, add_generation_prompt=True)
    if not text.startswith(head):
        in_parts = isinstance(answer["content"], list)
        others: list[Any] = [
            [{"type": "text", "text": mark}] if in_parts else mark for mark in _MARKS
        ]
        ends = (
            _common(text, render([*asked, {"role": "assistant", "content": other}]))
            for other in others
        )
        head = text[: min(ends)]
    tokens, before = (tokenizer.encode(one, add_special_tokens=False) for one in (text, head))
    return tokens, _common(tokens, before)  # a token across the border is the answer's


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the items with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _ended(tokens: list[int], start: int, tokenizer: TokenizerWrapper, was_cut: bool) -> list[int]:
    """Cut tokens after the last end token; without one, an answer that was not cut gets one."""
    ends = tokenizer.eos_token_ids
    last = next((p for p in reversed(range(start, len(tokens))) if tokens[p] in ends), None)
    if was_cut:
        return tokens[:last]
    return [*tokens, tokenizer.eos_token_id] if last is None else tokens[: last + 1]
