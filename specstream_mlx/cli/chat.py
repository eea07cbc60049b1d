"""``specstream-mlx chat``."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserError
from ..files import decoded, parse_json, read_text, staged_file
from ..options import FLAG, TEXT, LengthOptions, option
from ..terminal.interrupts import noted_interrupt
from ..terminal.notes import note
from . import launched
from .draft_marks import DraftMarks
from .options import ModelOptions, OutputOptions, SamplingOptions, Source

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
        None,
        TEXT,
        "System prompt. Default: the chat template's own.",
        metavar="TEXT",
        panel=LengthOptions.PANEL,
    ),
    length: LengthOptions,
    sampling: SamplingOptions,
    show_drafts: bool = option(
        False, FLAG, "Mark each step's accepted drafts.", panel=OutputOptions.PANEL
    ),
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
    session = _Session(
        loaded,
        Chat(loaded, tokenizer, system_prompt),
        source,
        options,
        lambda: sampling.sampler(tokenizer),
        show_drafts,
    )
    if show_drafts:
        note(DraftMarks().legend())
    for line in launched.lines_of_first(_lines()):
        session.take(line)
        if session.over:
            break


class _Session:
    """A conversation at the terminal, which carries out the lines typed.

    Attributes:
        over: whether the user has left.
    """

    def __init__(
        self,
        model: "SpeculativeModel",
        chat: "Chat",
        source: Source,
        options: dict[str, Any],
        sampler: Callable[[], Any],
        show_drafts: bool,
    ) -> None:
        self.over = False
        self._model, self._chat, self._source = model, chat, source
        self._options, self._sampler = options, sampler
        self._marks, self._drafts = show_drafts, True
        self._last: GenerationResponse | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: note(HELP),
            "adapter": self._use_adapter,
            "draft": self._set_drafts,
            "marks": self._set_marks,
            "stats": self._show_figures,
            "save": self._save,
            "clear": lambda _: chat.clear(),
            "quit": self._quit,
        }

    def take(self, line: str) -> None:
        """Answer a line, or do what it asks for; a mistake is said and changes nothing."""
        try:
            if line.startswith("/"):
                name, _, rest = line[1:].partition(" ")
                command = self._commands.get(name)
                if command is None:
                    raise UserError(f"/{name} is no command; /help lists them")
                command(rest.strip())
            elif line.strip():
                self._answer(decoded(line.encode(errors="surrogateescape"), "the line"))
        except UserError as error:
            note(f"error: {error}")

    def _answer(self, text: str) -> None:
        from ..drafting.settings import DraftSettings

        marks = DraftMarks() if self._marks else None
        settings = None if self._drafts else DraftSettings(speculation=False)
        responses = self._chat.reply(
            text, settings=settings, sampler=self._sampler(), **self._options
        )
        with _stopped_by_interrupt() as stopped:
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
            note(f"(cut off at --max-tokens {self._options['max_tokens']})")

    def _use_adapter(self, name: str) -> None:
        if not name:
            from ..loading import named_adapters

            note("Adapters: " + ", ".join(["none", *named_adapters()]))
        elif name == "none":
            # What was mounted in the beginning, if that was streams alone.
            plain = self._source.unasked
            self._model.swap_adapter(self._source.adapter if plain else None)
        else:
            self._model.swap_adapter(name)

    def _set_drafts(self, value: str) -> None:
        self._drafts = _is_on("/draft", value)

    def _set_marks(self, value: str) -> None:
        self._marks = _is_on("/marks", value)
        if self._marks:
            note(DraftMarks().legend())

    def _show_figures(self, _: str) -> None:
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

    def _quit(self, _: str) -> None:
        self.over = True


def _is_on(command: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UserError(f"{command} is {value!r}, expected on or off")
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


def _stopped_by_interrupt() -> AbstractContextManager[Callable[[], bool]]:
    """Note Ctrl-C on rank 0, which says when a reply is over."""
    return noted_interrupt() if launched.is_first() else nullcontext(lambda: False)
