"""Commands made from functions: each parameter is an option, or a dataclass of options.

argparse reads the command line: it leaves out what was not given, and shows a help page in a
fraction of the time that libraries take which read signatures.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from ..errors import UserError, shown
from ..options import FLAG, Kind, Spec, options_of
from .errors import reported

Command = Callable[..., Any]


def program(command: Command, *, hidden: bool = False) -> Callable[..., None]:
    """Make a module's command a program; every mistake of the user is reported in one line."""

    def start(words: Sequence[str] | None = None) -> None:
        with reported():
            run(command, sys.argv[1:] if words is None else words, hidden=hidden)

    return start


def run(
    command: Command, words: Sequence[str], name: str | None = None, *, hidden: bool = False
) -> None:
    """Run a command with the words of a command line.

    A parameter whose default is an ``option`` is that option. One annotated with a dataclass of
    options gets an instance; one annotated with ``Annotated[dict[str, Any], dataclass]`` gets the
    options that the user gave.
    """
    text, headline, examples = inspect.cleandoc(command.__doc__ or "").partition("\nExample")
    parser = _Parser(
        name,
        description=text,
        epilog=(headline + examples).strip(),
        formatter_class=lambda prog: _Help(prog, max_help_position=30),
        allow_abbrev=False,
    )
    parameters = list(_parameters(command, hidden))
    headings: dict[str, Any] = {}
    for option in (one for parameter in parameters for one in parameter.options):
        heading = "arguments" if option.spec.positional else option.panel or "options"
        if heading not in headings and heading != "options":
            headings[heading] = parser.add_argument_group(heading)
        option.add(headings.get(heading, parser))
    after = (f" {_metavar(o.spec)}" for p in parameters for o in p.options if o.spec.positional)
    parser.usage = f"%(prog)s [OPTIONS]{''.join(after)}"
    given = vars(parser.parse_args(list(words)))
    command(**{parameter.name: parameter.value(given) for parameter in parameters})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


class _Help(argparse.RawDescriptionHelpFormatter):
    """Texts as they stand in the command; an option's metavar once, behind its last name."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar}"


@dataclass(frozen=True)
class _Option:
    """An option of a command line: its name, type, default, the rest of it, and its heading."""

    name: str
    type: Any
    default: Any
    spec: Spec
    panel: str | None

    def add(self, parser: Any) -> None:
        """Add it to a parser or a group of one."""
        spec, kind, default = self.spec, self.spec.kind, self.default
        flags = spec.flags or (f"--{self.name.replace('_', '-')}",)
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": self.name}
        help = spec.help
        if "/" in flags[0]:  # both a name and its opposite
            flags, how["action"] = (flags[0].partition("/")[0],), argparse.BooleanOptionalAction
        elif kind is FLAG:
            how["action"] = "store_false" if default else "store_true"
            if default:
                flags = (f"--no-{self.name.replace('_', '-')}",)
        else:
            how |= {"type": reader(kind, self.type), "metavar": _metavar(spec)}
            if is_list := _is_list(self.type):
                how["action"] = "append"
            how["required"] = default is MISSING
            silent = (None, MISSING, "")
            if not (is_list or default in silent or "default" in help.lower()):
                help = f"{help} Default: {default}.".strip()
        how["help"] = help.replace("%", "%%")
        if spec.positional:
            del how["dest"], how["required"]
            how["nargs"] = None if default is MISSING else "?"
            if how.pop("action", None):
                how["nargs"] = "+" if default is MISSING else "*"
            parser.add_argument(self.name, **how)
        else:
            parser.add_argument(*flags, **how)


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a command: one option, or the options of a group.

    Attributes:
        group: makes the parameter's value of the options given; ``None``: one option.
    """

    name: str
    group: Callable[..., Any] | None
    options: list[_Option]

    def value(self, given: Mapping[str, Any]) -> Any:
        """The parameter's value."""
        if self.group is None:
            (one,) = self.options
            return given.get(self.name, one.default)
        return self.group(**{o.name: given[o.name] for o in self.options if o.name in given})


def _parameters(command: Command, hidden: bool) -> Iterator[_Parameter]:
    for name, parameter in inspect.signature(command).parameters.items():
        type_, default = parameter.annotation, parameter.default
        group = next((one for one in (type_, *get_args(type_)) if is_dataclass(one)), None)
        if group is not None:
            make: Callable[..., Any] = group if type_ is group else dict
            options = []
            for field, spec in options_of(group):
                default = _default(field)
                if make is dict and default is MISSING:  # what is missing may come from elsewhere
                    default = None
                if hidden or not spec.hidden:
                    panel = _panel_of(group, field)
                    options.append(_Option(field.name, field.type, default, spec, panel))
            yield _Parameter(name, make, options)
        else:
            spec = default.metadata["option"]
            option = _Option(name, type_, _default(default), spec, spec.panel)
            yield _Parameter(name, None, [option])


def _default(field: Field[Any]) -> Any:
    return None if field.default_factory is not MISSING else field.default


def _panel_of(group: Any, field: Field[Any]) -> str | None:
    """Return the option's own panel, or that of the class that declares it, if it has one."""
    own = field.metadata["option"].panel
    classes = (each for each in group.__mro__ if field.name in each.__annotations__)
    return own or getattr(next(classes), "PANEL", None)


def _metavar(spec: Spec) -> str:
    return spec.metavar or "|".join(spec.kind.choices) or "TEXT"


def _is_list(type_: Any) -> bool:
    return any(get_origin(part) is list for part in (type_, *get_args(type_)))


def reader(kind: Kind, type_: Any = str) -> Callable[[str], Any]:
    """Make what reads a text as a value, or as one of a list that is checked when it is whole."""
    whole = kind.read is not None or kind.choices or not _is_list(type_)
    read = kind.read or (str if whole or "Path" not in str(type_) else Path)

    def value_of(text: str) -> Any:
        value: Any = text
        with suppress(ValueError, RecursionError):  # else the text itself is refused
            value = read(text)
        expected = kind.objection(value) if whole else None
        if expected is not None:
            raise argparse.ArgumentTypeError(f"found {shown(text)}, expected {expected}")
        return value

    return value_of
