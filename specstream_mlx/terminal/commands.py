"""Commands made from functions: each parameter is an option, or a dataclass of options."""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from ..errors import UserError, shown
from ..options import FLAG, Kind, Spec, options_of
from .errors import reported
from .notes import fitted

Command = Callable[..., Any]


def program(command: Command, *, hidden: bool = False) -> Callable[..., None]:
    """Make a module's command a program."""

    def start(words: Sequence[str] | None = None) -> None:
        with reported():
            run(command, sys.argv[1:] if words is None else words, hidden=hidden)

    return start


def run(
    command: Command, words: Sequence[str], name: str | None = None, *, hidden: bool = False
) -> None:
    """Run a command with the words of a command line.

    A parameter whose default is an ``option`` is that option. One annotated with a dataclass of
    options gets an instance; with ``Annotated[dict[str, Any], dataclass]``, what is set of them.
    """
    text, headline, examples = inspect.cleandoc(command.__doc__ or "").partition("\nExample")
    parser = _Parser(
        name,
        description=fitted(text, paragraphs=True),
        epilog=fitted((headline + examples).strip(), paragraphs=True),
        formatter_class=lambda prog: _Help(prog, max_help_position=30),
        allow_abbrev=False,
    )
    groups = {
        name: _group(name, parameter, hidden)
        for name, parameter in inspect.signature(command).parameters.items()
    }
    options = [option for _, members in groups.values() for option in members]
    headings: dict[str, Any] = {"options": parser}
    for option in options:
        heading = "arguments" if option.spec.positional else option.panel or "options"
        if heading not in headings:
            headings[heading] = parser.add_argument_group(heading)
        option.add(headings[heading])
    after = (
        f" [{option.metavar}]" if option.default is None else f" {option.metavar}"
        for option in options
        if option.spec.positional
    )
    parser.usage = f"%(prog)s [OPTIONS]{''.join(after)}"
    given = vars(parser.parse_args(list(words)))
    _check_together({option.name: option for option in options if option.name in given})
    values: dict[str, Any] = {}
    for name, (make, members) in groups.items():
        arguments = {option.name: given[option.name] for option in members if option.name in given}
        if make is None:
            values[name] = arguments.get(name, members[0].default)
        else:
            values[name] = make(**arguments)
    command(**values)


def _check_together(given: Mapping[str, "_Option"]) -> None:
    for option in given.values():
        for other in option.spec.without:
            if other in given:
                raise UserError(
                    f"{option.flag} and {given[other].flag} were both given, expected at most one"
                )
        needs = option.spec.needs
        if needs and not given.keys() & needs:
            flags = " or ".join(f"--{name.replace('_', '-')}" for name in needs)
            raise UserError(f"{option.flag} was given, expected with {flags}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


class _Help(argparse.RawDescriptionHelpFormatter):
    """An option's metavar stands once, after its last name."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar}"


@dataclass(frozen=True)
class _Option:
    name: str
    type: Any
    default: Any
    spec: Spec
    panel: str | None

    @property
    def metavar(self) -> str:
        kind = self.spec.kind
        return self.spec.metavar or kind.metavar or "|".join(kind.choices) or "TEXT"

    @property
    def flag(self) -> str:
        if self.spec.positional:
            return self.metavar
        if self.spec.flags:
            return self.spec.flags[0].partition("/")[0]
        no = "no-" if self.spec.kind is FLAG and self.default else ""
        return f"--{no}{self.name.replace('_', '-')}"

    def add(self, parser: Any) -> None:
        spec, kind, default, help = self.spec, self.spec.kind, self.default, self.spec.help
        flags = (self.flag, *spec.flags[1:])
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": self.name}
        if spec.flags and "/" in spec.flags[0]:  # both a name and its opposite
            how["action"] = argparse.BooleanOptionalAction
        elif kind is FLAG:
            how["action"] = "store_false" if default else "store_true"
        else:
            how |= {"type": reader(kind, self.type), "metavar": self.metavar}
            if _is_list(self.type):
                how["action"] = "append"
            how["required"] = default is MISSING
            if default not in (None, MISSING, "") and "default" not in help.lower():
                shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
                help = f"{help} Default: {shown}.".strip()
        how["help"] = help.replace("%", "%%")
        if spec.positional:
            del how["dest"], how["required"]
            how["nargs"] = "+" if how.pop("action", None) else "?" if default is None else None
            flags = (self.name,)
        parser.add_argument(*flags, **how)


def _group(
    name: str, parameter: inspect.Parameter, hidden: bool
) -> tuple[Callable[..., Any] | None, list[_Option]]:
    """The options of a parameter and, for a group, the function that makes its value."""
    annotation, default = parameter.annotation, parameter.default
    parts = (annotation, *get_args(annotation))
    group: Any = next((part for part in parts if is_dataclass(part)), None)
    if group is None:
        spec = default.metadata["option"]
        return None, [_Option(name, annotation, _default(default), spec, spec.panel)]
    options = []
    for field, spec in options_of(group):
        if spec.hidden and not hidden:
            continue
        default = _default(field)
        if annotation is not group and default is MISSING:  # it may come from elsewhere
            default = None
        classes = (cls for cls in group.__mro__ if field.name in cls.__annotations__)
        panel = spec.panel or getattr(next(classes), "PANEL", None)
        options.append(_Option(field.name, field.type, default, spec, panel))
    return (group if annotation is group else dict), options


def _default(field: Field[Any]) -> Any:
    return None if field.default_factory is not MISSING else field.default


def _is_list(type_: Any) -> bool:
    return any(get_origin(part) is list for part in (type_, *get_args(type_)))


def reader(kind: Kind, type_: Any = str) -> Callable[[str], Any]:
    """Make a parser of a text: of a value, or of an element of a list that is checked later."""
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
