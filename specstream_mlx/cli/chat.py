"""``specstream-mlx chat``."""

import json
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from .. import demonstration
from ..errors import UserError
from ..files import decoded, parse_json, read_text, staged_file
from ..loading.model_paths import adapter_named, named_adapters, own_sampling
from ..options import FLAG, TEXT, LengthOptions, number, option
from ..terminal.dimmed import Dimmed
from ..terminal.errors import noted_interrupt
from ..terminal.notes import note
from ..terminal.wrapped import Wrapped
from . import launched
from .options import THINKING, CliSamplingOptions, Source, WritingModelOptions

if TYPE_CHECKING:
    from ..generation.chat import Chat
    from ..generation.text import GenerationResponse
    from ..loading.speculative_model import SpeculativeModel

HELP = """\
/adapter [NAME|DIR|none]  do one task with each text, or talk (none); alone: list the tasks
/stats                    figures of the last reply
/save FILE                write the conversation as JSON
/clear                    begin anew
/quit                     leave, as Ctrl-D does
Ctrl-C stops a reply and keeps what there is of it.
A line that ends in \\ goes on in the next, and lines pasted at once are one text."""

_USUAL = {"temp": 0.7, "top_p": 0.95}
"""Sampling of models that recommend none."""


@dataclass(frozen=True)
class _Sampling(CliSamplingOptions):
    temp: float = option(
        0.0,
        number(0),
        "Sampling temperature; 0 takes the likeliest token. Default of this and of the others: the "
        "model's own, by its generation_config.json.",
        metavar="T",
    )


def chat(
    *,
    model: WritingModelOptions,
    system_prompt: str | None = option(
        None, TEXT, "System prompt. Default: the chat template's own.", panel=LengthOptions.PANEL
    ),
    thinking: bool = THINKING,
    length: LengthOptions,
    sampling: Annotated[dict[str, Any], _Sampling],
    verbose: bool = option(False, FLAG, "Figures after each reply.", "--verbose", "-v"),
) -> None:
    """Talk with a model; each turn reads only what is new.

    Lines that begin with / are commands, /help lists them. A line that ends in a backslash goes on
    in the next. If standard input is not a terminal, each of its lines is a turn.

    Examples:

        specstream-mlx chat

        specstream-mlx chat --temp 0.7 --system-prompt "Answer in one sentence."
    """
    source = model.source()
    from ..generation.chat import Chat

    loaded, tokenizer = source.load(reproducible=model.reproducible)
    drawn, how = _sampling(sampling, loaded.path)
    options = {
        "max_tokens": length.max_tokens,
        "stop": tuple(length.stop or ()),
        "logits_processors": drawn.logits_processors(loaded.config["vocab_size"]),
    }

    def draws() -> bool:  # an adapter of one task takes the likeliest tokens unless asked
        return loaded.prompt_template is None or "temp" in sampling

    conversation = _Conversation(
        loaded,
        Chat(loaded, tokenizer, system_prompt, None if thinking else False),
        source,
        # A new seed for each reply.
        lambda: options | ({"sampler": drawn.sampler(tokenizer)} if draws() else {}),
        source.adapter if source.by_default else None,
        lambda: how if draws() else None,
        verbose,
    )
    conversation.begin(source.adapter_name, "; /help lists the commands")
    for line in launched.lines_of_first(_lines()):
        conversation.take(line)
        if conversation.is_over:
            break


def _sampling(given: dict[str, Any], model: Path) -> tuple[CliSamplingOptions, str | None]:
    """The given options, the model's for the rest, and a sentence about them."""
    defaults, whose = own_sampling(model), "the model's own"
    if defaults is None and model == demonstration.directory():
        defaults = demonstration.SAMPLING
    if defaults is None:
        defaults, whose = _USUAL, "the model names none"
    if defaults.keys() <= given.keys() or given.get("temp") == 0:
        return CliSamplingOptions(**given), None
    values = defaults | given
    shown = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())
    return CliSamplingOptions(**values), f"Drawing with {shown or '--temp 0'} ({whose})"


@dataclass
class _Conversation:
    """A conversation at the terminal."""

    model: "SpeculativeModel"
    chat: "Chat"
    source: Source
    options: Callable[[], dict[str, Any]]
    streams: Path | None  # mounted where no adapter is
    drawing: Callable[[], str | None]  # says how replies are drawn now, if that is to be said
    verbose: bool = False
    adapter: str | None = None
    is_over: bool = False
    last: "GenerationResponse | None" = None

    def begin(self, adapter: str | None, more: str = "") -> None:
        """Say which model and adapter the conversation continues with, by the user's names."""
        self.adapter = adapter
        note(f"Talking to {self.source.model_name}{f' with {adapter}' if adapter else ''}{more}")
        if how := self.drawing():
            note(how)

    def take(self, line: str) -> None:
        """Answer a line or run its command; a mistake is reported and changes nothing."""
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
        wrapped = Wrapped() if sys.stdout.isatty() else None
        responses, dimmed = self.chat.reply(text, **options), Dimmed()
        # Rank 0 says when a reply is over.
        noted = noted_interrupt() if launched.is_first() else nullcontext(lambda: False)
        with noted as stopped:
            try:
                for response in responses:
                    self.last = response
                    if style := dimmed.turn(self.chat.is_thinking):
                        if wrapped is not None:
                            wrapped.flush()
                        print(style, end="")
                    if wrapped is not None:
                        wrapped.write(response.text)
                    else:
                        print(response.text, end="", flush=True)
                    if stopped():
                        break
            finally:
                responses.close()
                if wrapped is not None:
                    wrapped.flush()
                print(dimmed.turn(False), flush=True)
        if stopped():
            note("(stopped)")
        elif self.last is not None and self.last.finish_reason == "length":
            note(f"(cut off at --max-tokens {options['max_tokens']})")
        if self.verbose and self.last is not None:
            self._stats(self.last)

    def _command(self, name: str, value: str) -> None:
        match name:
            case "help":
                note(HELP)
            case "adapter" if value == "none":
                self.model.swap_adapter(self.streams)
                self.begin(self.source.adapter_name if self.streams else None)
            case "adapter" if value:
                self.model.swap_adapter(value if Path(value).exists() else adapter_named(value))
                self.begin(value)
            case "adapter":
                note(f"Adapters: {', '.join(['none', *named_adapters()])}")
                note(f"In use: {self.adapter or 'none'}")
            case "stats":
                if self.last is None:
                    raise UserError("/stats was given before the first reply")
                self._stats(self.last)
            case "save":
                self._save(value)
            case "clear":
                self.chat.clear()
            case "quit":
                self.is_over = True
            case _:
                raise UserError(f"/{name} is no command; /help lists them")

    def _stats(self, last: "GenerationResponse") -> None:
        reused = self.chat.cache.reused
        note(f"Prompt: {last.prompt_tokens} tokens, {reused} of them read in earlier turns")
        count, rate = last.generation_tokens, last.generation_tps
        note(f"Reply: {count} tokens, {rate:.1f} tokens-per-sec")
        length, calls = last.accepted_length, last.target_calls
        note(f"Accepted length: {length:.2f} in {calls} target calls")
        if last.draft_stats is not None and last.draft_stats.sentence:
            note(last.draft_stats.sentence)

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
    """Yield the user's text of each turn, until Ctrl-D, or Ctrl-C twice with nothing typed."""
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        import readline  # lets input() edit lines and recall earlier ones
    else:
        piped = cast(TextIOWrapper, sys.stdin)
        piped.reconfigure(encoding="utf-8-sig", errors="surrogateescape")  # checked line by line
    lines: list[str] = []
    warned = False
    while True:
        prompt = ". " if lines else "> "
        try:
            lines.append(input(prompt if at_terminal else "").rstrip("\r"))
        except EOFError:
            if lines:
                yield "\n".join(lines)
            if at_terminal:
                print()
            return
        except KeyboardInterrupt:
            if not at_terminal:
                raise
            print()
            if lines or readline.get_line_buffer():
                warned = False
            elif warned:
                return
            else:
                warned = True
                note("Ctrl-C again leaves, as Ctrl-D and /quit do")
            lines = []
            continue
        warned = False
        if at_terminal and not lines[0].startswith("/") and _is_more():
            continue  # pasted
        if lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            continue
        yield "\n".join(lines)
        lines = []


def _is_more() -> bool:
    """Tell whether another line has arrived already, so that it must have been pasted."""
    return bool(select.select([sys.stdin], [], [], 0.05)[0])
