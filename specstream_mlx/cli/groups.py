"""Commands whose options come in groups.

A group is a dataclass whose fields are annotated as typer options. A command takes whole groups;
typer sees every field as an option of the command.
"""

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, get_args


def grouped(panels: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for a command that takes groups beside options of its own.

    Args:
        panels: whether ``--help`` shows each group under its ``PANEL``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        groups: dict[str, type] = {}
        options: list[Parameter] = []
        for name, parameter in signature.parameters.items():
            if is_dataclass(parameter.annotation):
                groups[name] = parameter.annotation
                options += _options(parameter.annotation, panels)
            else:
                options.append(parameter)

        @wraps(command)
        def run(**values: Any) -> None:
            filled = {
                name: group(**{field.name: values.pop(field.name) for field in fields(group)})
                for name, group in groups.items()
            }
            command(**filled, **values)

        run.__signature__ = signature.replace(parameters=options)
        run.__annotations__ = {option.name: option.annotation for option in options}
        return run

    return decorate


def _options(group: type, panels: bool) -> list[Parameter]:
    """The fields of a group as keyword-only parameters."""
    found = []
    for field in fields(group):
        kind, option = get_args(field.type)
        if panels:
            option = copy(option)
            option.rich_help_panel = group.PANEL
        default = Parameter.empty if field.default is MISSING else field.default
        found.append(
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, option],
            )
        )
    return found
