"""``specstream-mlx chat``."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserError
from ..files import decoded, parse_json, read_text, staged_file
from ..options import TEXT, LengthOptions, option
from ..terminal.interrupts import noted_interrupt
from ..terminal.notes import note
from . import launched
from .draft_marks import DraftMarks
from .options import ModelOptions, SamplingOptions

if TYPE_CHECKING:
    from ..chat import Chat
    from ..loading import SpeculativeModel
    from ..responses import GenerationResponse

HELP = """\
/adapter [NAME|DIR|none]  do one task with each text, or talk (none); alone: list the tasks
/draft on|off             draft, or write one token a step: the same text, more slowly
/marks on|off             mark what was drafted
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


class _Conversation:
    """A conversation at the terminal; ``streams`` are mounted where no adapter is."""

    def __init__(
        self,
        model: "SpeculativeModel",
        chat: "Chat",
        options: Callable[[], dict[str, Any]],
        streams: Path | None,
    ) -> None:
        self.is_over = False
        self._model, self._chat, self._options, self._streams = model, chat, options, streams
        self._marks, self._drafts = False, True
        self._last: GenerationResponse | None = None

    def take(self, line: str) -> None:
        """Answer a line, or do what it asks for; a mistake is said and changes nothing."""
        try:
            if line.startswith("/"):
                name, _, rest = line[1:].partition(" ")
                self.command(name, rest.strip())
            elif line.strip():
                self._answer(decoded(line.encode(errors="surrogateescape"), "the line"))
        except UserError as error:
            note(f"error: {error}")

    def _answer(self, text: str) -> None:
        from ..drafting.settings import DraftSettings

        marks, options = DraftMarks() if self._marks else None, self._options()
        settings = None if self._drafts else DraftSettings(speculation=False)
        responses = self._chat.reply(text, settings=settings, **options)
        # Rank 0 says when a reply is over.
        noted = noted_interrupt() if launched.is_first() else nullcontext(lambda: False)
        with noted as stopped:
            try:
                for response in responses:
                    self._last, piece = response, response.text
                    shown = marks.mark(piece, response.from_draft) if marks else piece
                    print(shown, end="", flush=True)
                    if stopped():
                        break
            finally:
                responses.close()
                print(marks.close() if marks else "", flush=True)
        if stopped():
            note("(stopped)")
        elif self._last is not None and self._last.finish_reason == "length":
            note(f"(cut off at --max-tokens {options['max_tokens']})")

    def command(self, name: str, value: str) -> None:
        """Carry out a command."""
        match name:
            case "help":
                note(HELP)
            case "adapter" if value:
                self._model.swap_adapter(self._streams if value == "none" else value)
            case "adapter":
                from ..loading import named_adapters

                note("Adapters: " + ", ".join(["none", *named_adapters()]))
            case "draft":
                self._drafts = _is_on(name, value)
            case "marks":
                self._marks = _is_on(name, value)
                if self._marks:
                    note(DraftMarks().legend())
            case "stats":
                self._stats()
            case "save":
                self._save(value)
            case "clear":
                self._chat.clear()
            case "quit":
                self.is_over = True
            case _:
                raise UserError(f"/{name} is no command; /help lists them")

    def _stats(self) -> None:
        if self._last is None:
            raise UserError("/stats was given before the first reply")
        last, reused = self._last, self._chat.cache.reused
        note(f"Prompt: {last.prompt_tokens} tokens, {reused} of them read in earlier turns")
        note(f"Reply: {last.generation_tokens} tokens, {last.generation_tps:.1f} tokens-per-sec")
        note(f"Accepted length: {last.accepted_length:.2f} in {last.target_calls} target calls")

    def _save(self, name: str) -> None:
        if not name:
            raise UserError("/save has no file, expected /save FILE")
        if Path(name).exists() and not _is_chat(Path(name)):
            raise UserError(f"{name} exists and is no saved chat, expected a new file")
        text = json.dumps(self._chat.messages, ensure_ascii=False, indent=2) + "\n"
        if launched.is_first():
            with staged_file(Path(name)) as partial:
                partial.write_text(text, encoding="utf-8")
        note(f"Saved to {name}")


def _is_on(command: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UserError(f"/{command} is {value!r}, expected on or off")
    return value == "on"


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
