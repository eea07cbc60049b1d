"""Chat templates are rendered in processes of their own, each within limits of time and size.

A template is a program that came with the model, and what clients say is its input. One that goes
on for long holds up neither the texts that are written nor other requests, and is ended: its
process is.
"""

import atexit
import json
import os
import selectors
import subprocess
import sys
import time
from functools import cache
from threading import Condition
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerBase

from ..errors import UserError
from ..prompts import LimitError, Render, Turns, rendered
from . import render_process
from .render_process import over

SECONDS = 2.0  # for all forms of a conversation together
_PROCESSES = 4
_START = 60.0  # seconds until a process is there, at most


class Renderer:
    """Processes that render: two from the start, so that one is there while another is busy."""

    def __init__(self, seconds: float = SECONDS):
        self._seconds = seconds
        self._changed = Condition()
        self._idle, self._count = [_Process(), _Process()], 2
        atexit.register(self.close)

    def limited(self) -> Render:
        """Return what renders the forms of one conversation, in ``seconds`` all together."""
        left = self._seconds

        def render(tokenizer: TokenizerWrapper, turns: Turns, arguments: dict[str, Any]) -> str:
            nonlocal left
            asked = _asked(tokenizer, turns, arguments)
            if asked is None:
                return rendered(tokenizer, turns, arguments)
            process = self._take()
            try:
                process.await_start()
                start = time.monotonic()
                answer = process.ask(asked, left)
                left -= time.monotonic() - start
            finally:
                self._give_back(process)
            if "text" in answer:
                return answer["text"]
            raise (LimitError if answer["limit"] else UserError)(answer["error"])

        return render

    def close(self) -> None:
        """End the processes that do nothing."""
        with self._changed:
            while self._idle:
                self._idle.pop().end()
                self._count -= 1

    def _take(self) -> "_Process":
        with self._changed:
            if not self._idle and self._count == _PROCESSES:
                self._changed.wait_for(lambda: self._idle or self._count < _PROCESSES)
            if len(self._idle) < 2 and self._count < _PROCESSES:
                self._idle.append(_Process())  # which takes a second to be there
                self._count += 1
            return self._idle.pop(0)

    def _give_back(self, process: "_Process") -> None:
        with self._changed:
            if process.lives:
                self._idle.append(process)
            else:
                self._count -= 1
            self._changed.notify()


@cache
def shared_renderer() -> Renderer:
    """Return the renderer that all servers of this process share."""
    return Renderer()


def _asked(
    tokenizer: TokenizerWrapper, turns: Turns, arguments: dict[str, Any]
) -> dict[str, Any] | None:
    """Return what a process needs to render, as mlx_lm would; ``None``: a program of its own."""
    inner = tokenizer._tokenizer
    own = type(inner).apply_chat_template
    if (
        tokenizer._chat_template is not None
        or own is not PreTrainedTokenizerBase.apply_chat_template
    ):
        return None
    try:
        template = inner.get_chat_template(None, arguments["tools"])
    except ValueError:
        return None
    thinking = {"enable_thinking": tokenizer.has_thinking}
    further = {**inner.special_tokens_map, **thinking, **arguments}
    return {"conversations": [turns], "chat_template": template, **further}


class _Process:
    def __init__(self) -> None:
        # Nothing is imported from the folder in which the server happens to run.
        command = [sys.executable, "-P", "-m", render_process.__name__]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=nothing, bufsize=0, start_new_session=True
        )
        self._is_ready, self.lives = False, True

    def await_start(self) -> None:
        if not self._is_ready:
            try:
                self._line(_START)
            except OSError:  # a timeout, too
                self.end()
                raise
            self._is_ready = True

    def ask(self, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Render, or say why not; a process that is late is ended."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            return json.loads(self._line(seconds))
        except TimeoutError:
            self.end()
            return over("longer than it may")
        except (OSError, ValueError):  # it has come to an end
            self.end()
            return over("more memory than it may")

    def end(self) -> None:
        self.lives = False
        self._process.kill()
        self._process.communicate()

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        output, end, line = self._process.stdout.fileno(), time.monotonic() + seconds, b""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                piece = os.read(output, 1 << 20)
                if not piece:
                    raise BrokenPipeError
                line += piece
        return line
