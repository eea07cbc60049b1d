"""``specstream-mlx write``: one adapter as a filter, from standard input to standard output."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from textwrap import indent
from typing import Any

from ..bundled import tools
from ..bundled.parts import Part, Work
from ..corrections import Correction, careful
from ..errors import UserError
from ..files import prompt_text
from ..options import FILE, FLAG, MODEL, NAME, most_tokens, option
from ..serve import local
from ..terminal.notes import note
from ..terminal.progress import progress
from .options import WEIGHTS, ModelOptions, Source, standard_input

Pieces = Iterator[tuple[int, local.Written]]
"""What comes of several texts, with the number of each."""


def write(
    *,
    adapter: str | None = option(
        None, NAME, "One of the tools below, or an adapter of yours.", positional=True
    ),
    file: Path | None = option(None, FILE, "The text. Default: standard input.", "--file", "-f"),
    as_json: bool = option(False, FLAG, "Print one JSON object, with figures.", "--json"),
    max_tokens: int = most_tokens(1024, "Tokens at most, of each part of the text."),
    model: str | None = option(None, MODEL, "The adapter's base. Default: smollm2."),
    take_all: bool = option(
        False, FLAG, "With proofread: make corrections that change what the text says, too."
    ),
    strict: bool = option(
        False, FLAG, "Refuse a text that the tool does not know, in place of saying so."
    ),
    weights: str = WEIGHTS,
) -> None:
    """Do one task with a text: read it, and write the result as it comes.

    Standard output has the result and nothing else. The tools that write a text anew get its
    paragraphs, side by side, so that line breaks, greetings and lists stay. proofread leaves out
    corrections that change a number, name, date, address or negation, or that add or drop words,
    and names them on standard error. A running serve or writing-tools writes, if there is one, and
    the result begins at once. Exit codes: 0, all is written; 1, the result was cut off at
    --max-tokens; 2, something was wrong. Without a name it lists the tools.

    Examples:

        specstream-mlx write proofread < message.txt

        specstream-mlx write key_points --file dialogue.txt --json
    """
    if adapter is None:
        note(f"write NAME < FILE does one of these:\n\n{tools.listing()}")
        raise SystemExit(2)
    source = ModelOptions(model, adapter=adapter, weights=weights).source(quiet=True)
    text = standard_input() if file is None else prompt_text(file)
    if objection := tools.objection(source.adapter, text):
        if strict:
            raise UserError(objection)
        note(f"{objection}: what follows is made up")
    task = Task(adapter, source.adapter, text, take_all)  # type: ignore[arg-type]
    pieces = written(source, [task], max_tokens)
    with progress("Writing") if as_json or not sys.stdout.isatty() else nullcontext() as show:
        for _, new in in_order([task], pieces):
            if not as_json:
                print(new, end="", flush=True)
            if show is not None and len(task.work.parts) > 1:
                show(task.work.ended, len(task.work.parts))
    left = task.left_out
    if as_json:
        whole = {
            "adapter": adapter,
            "text": task.work.result,
            "left_out": [{"old": c.old, "new": c.text, "changes": c.meaning} for c in left],
        }
        print(json.dumps(whole | task.figures), flush=True)
    else:
        print(flush=True)
    note_left_out(left)
    if task.is_cut:
        note(f"The result was cut off at --max-tokens {max_tokens}")
        raise SystemExit(1)


class Task:
    """A text for a tool, or for an adapter of the user's: its work, and corrections left out."""

    def __init__(self, name: str, adapter: Path, text: str, take_all: bool = False):
        tool, self.name, self._left = tools.tool_at(adapter), name, list[Correction]()
        self.text, self._take_all = text, take_all
        self._last: dict[int, local.Written] = {}  # of each part, the newest piece
        self._began = self._now = 0.0
        edit = self._corrected if tool and tool.name == "proofread" else None
        self.work = Work(tool.name if tool else None, text, edit)
        self.chats = [local.Chat(name, adapter, prompt) for prompt in self.work.prompts]

    def add(self, part: int, piece: local.Written) -> str:
        """Take in what came of a part; returns what follows of the result, as far as it is sure."""
        self._now = time.perf_counter()
        self._began = self._began or self._now
        self._last[part] = piece
        return self.work.add(part, piece.text, piece.finish_reason is not None)

    @property
    def is_cut(self) -> bool:
        return any(one.finish_reason == "length" for one in self._last.values())

    @property
    def figures(self) -> dict[str, Any]:
        """Counts over all parts."""
        tokens = sum(one.generation_tokens for one in self._last.values())
        calls = sum(one.target_calls for one in self._last.values())
        return {
            "finish_reason": "length" if self.is_cut else "stop",
            "generation_tokens": tokens,
            "generation_tps": (tokens - 1) / max(self._now - self._began, 1e-9),
            "accepted_length": tokens / max(calls, 1),
        }

    @property
    def left_out(self) -> list[Correction]:
        """In the text's order."""
        return sorted(self._left, key=lambda one: one.start)

    def _corrected(self, part: Part, written: str) -> str:
        old = self.text[part.start : part.end]
        if part.is_item and not old.endswith("."):
            written = written.removesuffix(".")  # as the others have none
        if self._take_all:
            return written
        written, left = careful(old, written, self.text, part.start)
        self._left += left
        return written


def written(source: Source, tasks: Sequence[Task], max_tokens: int) -> Pieces:
    """Let a running server write all texts, or else this process; the first piece has come."""
    chats = [chat for task in tasks for chat in task.chats]
    first: list[tuple[int, local.Written]] = []
    with progress("Reading the text") as show:

        def reading(read: int, of: int) -> None:
            if not first:  # later ones are read while others are written
                show(read, of)

        served, weights = None, source.options.weights
        if os.path.isdir(source.model):
            served = local.written(Path(source.model), chats, max_tokens, weights, reading)
        pieces = served or _by_itself(source, chats, max_tokens, reading)
        first.append(next(pieces))
    return chain(first, pieces)


def in_order(tasks: Sequence[Task], pieces: Pieces) -> Iterator[tuple[Task, str]]:
    """Yield how the results of tasks go on, one task after the other, as far as it is sure."""
    places = [(task, part) for task in tasks for part in range(len(task.chats))]
    waiting, ahead = deque(tasks), dict[Task, str]()
    for number, piece in pieces:
        task, part = places[number]
        ahead[task] = ahead.get(task, "") + task.add(part, piece)
        while waiting and (task := waiting[0]) in ahead:
            yield task, ahead.pop(task)
            if task.work.ended < len(task.chats):
                break
            waiting.popleft()


def note_left_out(left: Sequence[Correction]) -> None:
    for one in left:
        old, new = one.old.strip(), one.text.strip()
        what = f"{new!r} in the place of {old!r}" if new else f"taking {old!r} out"
        note(f"Left as it was: {what} changes {one.meaning}")


def _by_itself(
    source: Source, chats: Sequence[local.Chat], max_tokens: int, reading: Any
) -> Pieces:
    """Load the model, and yield what it writes, all texts side by side."""
    from ..batch import stream_batch
    from ..prompts import chat_prompt

    loaded, tokenizer = source.load()
    texts = []
    for chat in chats:
        own = loaded if chat.adapter == source.adapter else loaded.with_adapter(chat.adapter)
        texts.append((own, chat_prompt(tokenizer, chat.text, own.prompt_template)))
    for number, one in stream_batch(texts, tokenizer, max_tokens, reading):
        figures = one.generation_tokens, one.finish_reason, one.target_calls
        yield number, local.Written(one.text, *figures)


_TOOLS = indent(f"Tools:\n\n{tools.listing()}", 4 * " ")
write.__doc__ = f"{write.__doc__}\n{_TOOLS}"
