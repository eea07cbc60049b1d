"""Texts for the tools, written by a running server or by this process, and shown in a terminal."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specstream_mlx import UserError, bundled
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import progress

from . import running_servers, tools
from .corrections import Correction, careful
from .parts import Part, TextInParts
from .running_servers import AdapterText, Piece

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from specstream_mlx.loading.speculative_model import SpeculativeModel

Pieces = Iterator[tuple[int, Piece]]
"""What comes of several texts, with the number of each."""


class Source(Protocol):
    """Where a base and an adapter are, and how to load them."""

    @property
    def model(self) -> str | Path: ...
    @property
    def adapter(self) -> Path | None: ...
    @property
    def weights(self) -> str: ...
    def load(self) -> "tuple[SpeculativeModel, TokenizerWrapper]": ...


def write_text(source: Source, task: "Task", max_tokens: int, as_json: bool) -> None:
    """Print the result of a task as it comes, or with figures as one JSON object."""
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
            "adapter": task.name,
            "text": task.work.result,
            "left_out": [{"old": c.old, "new": c.text, "changes": c.meaning} for c in left],
        }
        print(json.dumps(whole | task.figures), flush=True)
    else:
        print(flush=True)
    note_left_out(left)


def chosen_tools(names: Sequence[str] | None) -> list[tools.Tool]:
    """List the tools of these names in the page's order, or else those that read any text."""
    for name in names or ():
        bundled.adapter_path(name)  # or a sentence says which there are
    chosen = [one for one in tools.present() if (one.name in names if names else not one.form)]
    if not chosen:
        raise UserError("this installation has no bundled adapters")
    return chosen


def tasks_for(chosen: Sequence[tools.Tool], given: str | None) -> list["Task"]:
    """Make a task of a text, or of an example, for each tool."""
    tasks = []
    for one in chosen:
        text = given or (one if one.form else tools.TOOLS["proofread"]).example
        if one.form and (objection := one.objection(text)):
            raise UserError(objection)
        tasks.append(Task(one.name, bundled.adapter_path(one.name), text))
    return tasks


def write_in_turn(source: Source, tasks: Sequence["Task"], shows_text: bool) -> None:
    """Print the results of tasks one after the other, below the text where that is shown."""
    above: Task | None = None
    for task, new in in_order(tasks, written(source, tasks, 1024)):
        if task is not above:
            print("" if above is None else "\n\n", end="")
            if shows_text and (above is None or task.text != above.text):
                print(f"An example\n{task.text}\n")
            print(task.name, flush=True)
        print(new, end="", flush=True)
        above = task
    print(flush=True)
    for task in tasks:
        note_left_out(task.left_out)


class Task:
    """A text for a tool, or for an adapter of the user's: its work, and corrections left out."""

    def __init__(self, name: str, adapter: Path, text: str, take_all: bool = False):
        tool, self.name, self._left = tools.tool_at(adapter), name, list[Correction]()
        self.text, self._take_all = text, take_all
        self._last: dict[int, Piece] = {}  # of each part, the newest piece
        self._began = self._now = 0.0
        edit = self._corrected if tool and tool.name == "proofread" else None
        self.work = TextInParts(tool.name if tool else None, text, edit)
        read = tool.read if tool else str
        self.chats = [AdapterText(name, adapter, read(prompt)) for prompt in self.work.prompts]

    def add(self, part: int, piece: Piece) -> str:
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
    first: list[tuple[int, Piece]] = []
    with progress("Reading the text") as show:

        def reading(read: int, of: int) -> None:
            if not first:  # later ones are read while others are written
                show(read, of)

        served = None
        if os.path.isdir(source.model):
            base, weights = Path(source.model), source.weights
            served = running_servers.written(base, chats, max_tokens, weights, reading)
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
    source: Source, chats: Sequence[AdapterText], max_tokens: int, reading: Any
) -> Pieces:
    """Load the model, and yield what it writes, all texts side by side."""
    from specstream_mlx.prompts import chat_prompt
    from specstream_mlx.thoughts import ThoughtParser

    from .stream_batch import stream_batch

    loaded, tokenizer = source.load()
    texts = []
    for chat in chats:
        own = loaded if chat.adapter == source.adapter else loaded.with_adapter(chat.adapter)
        texts.append((own, chat_prompt(tokenizer, chat.text, own.prompt_template)))
    parsers = [ThoughtParser(tokenizer, prompt) for _, prompt in texts]
    for number, one in stream_batch(texts, tokenizer, max_tokens, reading):
        pieces = [*parsers[number].add(one.text)]
        if one.finish_reason:
            pieces += parsers[number].end()
        said = "".join(piece for piece in pieces if isinstance(piece, str))
        figures = one.generation_tokens, one.finish_reason, one.target_calls
        yield number, Piece(said, *figures)
