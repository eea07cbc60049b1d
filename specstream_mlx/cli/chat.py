"""``specstream-mlx chat``."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserError
from ..files import decoded, parse_json, read_text, staged_file
from ..options import TEXT, LengthOptions, option
from ..terminal.errors import noted_interrupt
from ..terminal.notes import note
from . import launched
from .options import ModelOptions, SamplingOptions

if TYPE_CHECKING:
    from ..chat import Chat
    from ..loading import SpeculativeModel
    from ..responses import GenerationResponse

HELP = """\
/adapter [NAME|DIR|none]  do one task with each text, or talk (none); alone: list the tasks
/stats                    figures of the last reply
/save FILE                write the conversation as JSON
/clear                    begin anew
/quit                     leave, as Ctrl-D does
Ctrl-C stops a reply and keeps what there is of it."""


def chat(
    *,
    model: ModelOptions,
    system_prompt: str | None = option(
        None, TEXT, "System prompt. Default: the chat template's own.", panel=LengthOptions.PANEL
    ),
    length: LengthOptions,
    sampling: SamplingOptions,
) -> None:
    """Talk with a model; each turn reads only what is new.

    Lines that begin with / are commands, /help lists them. Where standard input is no terminal,
    each of its lines is a turn.

    Examples:

        specstream-mlx chat

        specstream-mlx chat --temp 0.7 --system-prompt "Answer in one sentence."
    """
    from ..chat import Chat

    source = model.source()
    loaded, tokenizer = source.load()
    named = f" with {source.adapter_name}" if source.adapter else ""
    note(f"Talking to {source.model_name}{named}; /help lists the commands")
    options = {
        "max_tokens": length.max_tokens,
        "stop": tuple(length.stop or ()),
        "logits_processors": sampling.logits_processors(loaded.config["vocab_size"]),
    }
    conversation = _Conversation(
        loaded,
        Chat(loaded, tokenizer, system_prompt),
        lambda: options | {"sampler": sampling.sampler(tokenizer)},  # a new seed for each reply
        source.adapter if source.by_default else None,
    )
    for line in launched.lines_of_first(_lines()):
        conversation.take(line)
        if conversation.is_over:
            break


@dataclass
class _Conversation:
    """A conversation at the terminal; ``streams`` are mounted where no adapter is."""

    model: "SpeculativeModel"
    chat: "Chat"
    options: Callable[[], dict[str, Any]]
    streams: Path | None
    is_over: bool = False
    last: "GenerationResponse | None" = None

    def take(self, line: str) -> None:
        """Answer a line, or do what it asks for; a mistake is said and changes nothing."""
        try:
            if line.startswith("/"):
                name, _, rest = line[1:].partition(" ")
                self._command(name, rest.strip())
            elif line.strip():
                self._answer(decoded(line.encode(errors="surrogateescape"), "the line"))
        except UserError as error:
            note(f"error: {error}")

    def _answer(self, text: str) -> None:
        options = self.options()
        responses = self.chat.reply(text, **options)
        # Rank 0 says when a reply is over.
        noted = noted_interrupt() if launched.is_first() else nullcontext(lambda: False)
        with noted as stopped:
            try:
                for response in responses:
                    self.last = response
                    print(response.text, end="", flush=True)
                    if stopped():
                        break
            finally:
                responses.close()
                print(flush=True)
        if stopped():
            note("(stopped)")
        elif self.last is not None and self.last.finish_reason == "length":
            note(f"(cut off at --max-tokens {options['max_tokens']})")

    def _command(self, name: str, value: str) -> None:
        match name:
            case "help":
                note(HELP)
            case "adapter" if value:
                self.model.swap_adapter(self.streams if value == "none" else value)
            case "adapter":
                from ..loading import named_adapters

                note("Adapters: " + ", ".join(["none", *named_adapters()]))
            case "stats":
                if self.last is None:
                    raise UserError("/stats was given before the first reply")
                last, reused = self.last, self.chat.cache.reused
                note(f"Prompt: {last.prompt_tokens} tokens, {reused} of them read in earlier turns")
                count, rate = last.generation_tokens, last.generation_tps
                note(f"Reply: {count} tokens, {rate:.1f} tokens-per-sec")
                length, calls = last.accepted_length, last.target_calls
                note(f"Accepted length: {length:.2f} in {calls} target calls")
            case "save":
                self._save(value)
            case "clear":
                self.chat.clear()
            case "quit":
                self.is_over = True
            case _:
                raise UserError(f"/{name} is no command; /help lists them")

    def _save(self, name: str) -> None:
        if not name:
            raise UserError("/save has no file, expected /save FILE")
        if Path(name).exists() and not _is_chat(Path(name)):
            raise UserError(f"{name} exists and is no saved chat, expected a new file")
        text = json.dumps(self.chat.messages, ensure_ascii=False, indent=2) + "\n"
        if launched.is_first():
            with staged_file(Path(name)) as partial:
                partial.write_text(text, encoding="utf-8")
        note(f"Saved to {name}")


def _is_chat(path: Path) -> bool:
    """Tell whether a file was written by ``/save``."""
    try:
        messages = parse_json(read_text(path), path)
    except UserError:
        return False
    return isinstance(messages, list) and all(isinstance(m, dict) and "role" in m for m in messages)


def _lines() -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl-D; Ctrl-C drops the line."""
    if not sys.stdin.isatty():
        cast(TextIOWrapper, sys.stdin).reconfigure(errors="surrogateescape")  # checked line by line
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    import readline  # noqa: F401  # lets input() edit lines and recall earlier ones

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
