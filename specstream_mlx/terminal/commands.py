"""Commands whose options are fields of dataclasses, see ``options``; typer sees them one by one."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, Literal, get_args, get_origin

from typer import Option, Typer
from typer.core import TyperCommand

from ..options.fields import options_of
from ..options.kinds import FLAG
from .errors import one_line_errors, reported
from .parsing import parser

Command = Callable[..., Any]


def grouped(
    *, panels: bool | Sequence[str] = False, hidden: bool = False
) -> Callable[[Command], Command]:
    """Make a decorator for a command whose options are made from ``options.fields.option``.

    A parameter whose default is an option is that option. One annotated with a dataclass of options
    gets an instance; one annotated with ``Annotated[dict[str, Any], dataclass]`` gets the options
    that the user gave. Others, such as arguments, are typer's.

    Args:
        panels: whether ``--help`` shows each option under its panel; or the panels that come first.
        hidden: whether hidden options are included.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        groups: dict[str, tuple[Any, bool, list[_Flag]]] = {}
        single: list[_Flag] = []
        parameters: list[Parameter] = []
        for name, parameter in signature.parameters.items():
            group, given = _group_of(parameter.annotation)
            if group is not None:
                flags = [
                    _Flag(field.name, field.type, field, _panel_of(group, field), given)
                    for field, spec in options_of(group)
                    if hidden or not spec.hidden
                ]
                groups[name] = group, given, flags
            elif isinstance(parameter.default, Field):
                one = parameter.default
                flags = [_Flag(name, parameter.annotation, one, one.metadata["option"].panel)]
                single += flags
            else:
                parameters.append(parameter)
                continue
            parameters += [flag.parameter(bool(panels)) for flag in flags]

        if isinstance(panels, Sequence):
            first = {panel: number for number, panel in enumerate(panels)}
            parameters.sort(key=lambda each: first.get(_panel(each), len(first)))

        @wraps(command)
        def run(**values: Any) -> Any:
            for flag in single:
                values[flag.name] = flag.meant(values[flag.name])
            for name, (group, given, flags) in groups.items():
                own = {flag.name: flag.meant(values.pop(flag.name)) for flag in flags}
                if given:
                    values[name] = {option: v for option, v in own.items() if v is not None}
                else:
                    values[name] = group(**own)
            return command(**values)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


class _Reporting(TyperCommand):
    """A command that reports a mistake in its command line in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with reported():
            return super().parse_args(ctx, args)


def program(command: Command, *, hidden: bool = False) -> Typer:
    """Make a module's command a program, see ``grouped``; every mistake is reported in one line."""
    app = Typer(add_completion=False)
    app.command(cls=_Reporting)(one_line_errors(grouped(hidden=hidden)(command)))
    return app


def _panel(parameter: Parameter) -> str:
    return get_args(parameter.annotation)[1].rich_help_panel


def _panel_of(group: Any, field: Field[Any]) -> str | None:
    """Return the option's own panel, or that of the class that declares it, if it has one."""
    own = field.metadata["option"].panel
    classes = (each for each in group.__mro__ if field.name in each.__annotations__)
    return own or getattr(next(classes), "PANEL", None)


def _group_of(annotation: Any) -> tuple[Any, bool]:
    """Return a parameter's dataclass, and whether it takes only the options given."""
    if is_dataclass(annotation):
        return annotation, False
    inner = (*get_args(annotation), None, None)[1]
    return (inner, True) if is_dataclass(inner) else (None, False)


class _Flag:
    """An option as typer sees it.

    Args:
        name, type_: the option's. A list is of values of its kind, if that reads or chooses them.
        field: its field, made by ``option``.
        panel: its heading on a help page.
        given: whether it is ``None`` unless the user gives it; then help must name the default.
    """

    def __init__(
        self, name: str, type_: Any, field: Field[Any], panel: str | None, given: bool = False
    ):
        self.name, self._type, self._panel, self._given = name, type_, panel, given
        self._default, self._spec = field.default, field.metadata["option"]
        self._alone = self._spec.kind is FLAG and not self._spec.flags  # says the opposite

    def meant(self, value: Any) -> Any:
        """Turn typer's value into the field's."""
        opposite = self._alone and self._default and value is not None
        return not value if opposite else value

    def parameter(self, panels: bool) -> Parameter:
        """Make the command's parameter."""
        spec, kind = self._spec, self._spec.kind
        flags, help, default = spec.flags, spec.help, self._default
        if self._alone:
            flags, default = (f"--{'no-' if default else ''}{self.name.replace('_', '-')}",), False
        if self._given:
            if not (self._alone or default in (None, MISSING) or "default" in help.lower()):
                help = f"{help} Default: {default}.".strip()
            default = None
        type_ = self._type
        if kind.choices or kind.read is not None:
            one: Any = Literal[kind.choices] if kind.choices else str  # the parser makes the value
            many = any(get_origin(part) is list for part in (type_, *get_args(type_)))
            type_ = list[one] if many else one
        option = Option(
            *flags,
            help=help,
            metavar=spec.metavar,
            rich_help_panel=self._panel if panels else None,
            parser=None if kind.read is None else parser(kind),
            envvar=spec.envvar,
        )
        return Parameter(
            self.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if default is MISSING else default,
            annotation=Annotated[type_ | None if default is None else type_, option],
        )
