"""Commands whose options are fields of dataclasses, see ``options``; typer sees them one by one."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, Literal, get_args

from typer import Option, Typer
from typer.core import TyperCommand

from ..options.fields import Spec, options_of
from ..options.kinds import FLAG, Kind
from .errors import reported
from .parsing import parser

Command = Callable[..., Any]


def of_kind(kind: Kind, help: str, *flags: str, metavar: str | None = None, **more: Any) -> Any:
    """Make the typer option of a single parameter.

    Args:
        kind: the kind of its values.
        help: its help.
        flags: its names; empty: made from the parameter's.
        metavar: see ``Kind``.
        **more: further arguments of ``typer.Option``.
    """
    more["parser"] = parser(kind) if kind.read is not None else None
    return Option(*flags, help=help, metavar=metavar or kind.metavar, **more)


def grouped(
    *, panels: bool | Sequence[str] = False, hidden: bool = False
) -> Callable[[Command], Command]:
    """Make a decorator for a command that takes dataclasses of options beside other options.

    A parameter annotated with a dataclass gets an instance; one annotated with
    ``Annotated[dict[str, Any], dataclass]`` gets the options that the user gave.

    Args:
        panels: whether ``--help`` shows each option under its panel; or the panels that come first.
        hidden: whether hidden options are included.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        groups: dict[str, tuple[Any, bool, dict[str, _Flag]]] = {}
        parameters: list[Parameter] = []
        for name, parameter in signature.parameters.items():
            group, given = _group_of(parameter.annotation)
            if group is None:
                parameters.append(parameter)
                continue
            flags = {
                field.name: _Flag(group, field, spec, given)
                for field, spec in options_of(group)
                if hidden or not spec.hidden
            }
            groups[name] = group, given, flags
            parameters += [flag.parameter(bool(panels)) for flag in flags.values()]

        if isinstance(panels, Sequence):
            first = {panel: number for number, panel in enumerate(panels)}
            parameters.sort(key=lambda each: first.get(_panel(each), len(first)))

        @wraps(command)
        def run(**values: Any) -> Any:
            for name, (group, given, flags) in groups.items():
                own = {flag: flags[flag].meant(values.pop(flag)) for flag in flags}
                if given:
                    values[name] = {flag: v for flag, v in own.items() if v is not None}
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


def program(command: Command) -> Typer:
    """Make a module's command a program; a mistake in its command line is one line too."""
    app = Typer(add_completion=False)
    app.command(cls=_Reporting)(command)
    return app


def _panel(parameter: Parameter) -> str:
    return get_args(parameter.annotation)[1].rich_help_panel


def _group_of(annotation: Any) -> tuple[Any, bool]:
    """Return a parameter's dataclass, and whether it takes only the options given."""
    if is_dataclass(annotation):
        return annotation, False
    inner = (*get_args(annotation), None, None)[1]
    return (inner, True) if is_dataclass(inner) else (None, False)


class _Flag:
    """An option as typer sees it.

    Args:
        group: the option's dataclass.
        field, spec: the option's field and description.
        given: whether it is ``None`` unless the user gives it; then help must name the default.
    """

    def __init__(self, group: Any, field: Field[Any], spec: Spec, given: bool):
        self._group, self._field, self._spec, self._given = group, field, spec, given
        self._alone = spec.kind is FLAG and not spec.flags  # says the opposite of its default

    def meant(self, value: Any) -> Any:
        """Turn typer's value into the field's."""
        opposite = self._alone and self._field.default and value is not None
        return not value if opposite else value

    def _panel(self) -> str:
        """Return the option's own panel, or that of the class that declares it."""
        name, classes = self._field.name, self._group.__mro__
        return self._spec.panel or next(c.PANEL for c in classes if name in c.__annotations__)

    def parameter(self, panels: bool) -> Parameter:
        """Make the command's parameter."""
        field, spec, kind = self._field, self._spec, self._spec.kind
        flags, help, default = spec.flags, spec.help, field.default
        if self._alone:
            flags, default = (f"--{'no-' if default else ''}{field.name.replace('_', '-')}",), False
        if self._given:
            if not (self._alone or default in (None, MISSING) or "default" in help.lower()):
                help = f"{help} Default: {default}.".strip()
            default = None
        type_: Any = field.type if kind.read is None else str  # what is read has the kind's type
        if kind.choices:
            type_ = Literal[kind.choices]
        option = of_kind(
            kind,
            help,
            *flags,
            metavar=spec.metavar,
            rich_help_panel=self._panel() if panels else None,
        )
        return Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if default is MISSING else default,
            annotation=Annotated[type_ | None if default is None else type_, option],
        )
