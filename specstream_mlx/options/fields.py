"""Options as fields of dataclasses."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

from .kinds import Kind, optional


@dataclass(frozen=True)
class Spec:
    """The description of an option besides its type and default.

    Attributes:
        kind: the kind of its values; if the default is ``None``, the value may be ``None`` too.
        help: text of the help page, to which the default is added if neither names it.
        flags: names on the command line; empty: made from the field's name.
        metavar: see ``Kind``.
        panel: its heading on a help page; ``None``: its class's ``PANEL``.
        hidden: whether only Python and configuration files can set it.
        positional: whether it is given without a name.
    """

    kind: Kind
    help: str
    flags: tuple[str, ...]
    metavar: str | None
    panel: str | None
    hidden: bool
    positional: bool


def option(
    default: Any,
    kind: Kind,
    help: str = "",
    *flags: str,
    metavar: str | None = None,
    panel: str | None = None,
    hidden: bool = False,
    positional: bool = False,
) -> Any:
    """Make a field that is an option, see ``Spec``; with ``...`` as default it must be given.

    It may also stand as the default of a command's parameter, see ``terminal.commands``.
    """
    kind = optional(kind) if default is None else kind
    spec = Spec(kind, help, flags, metavar or kind.metavar, panel, hidden, positional)
    if callable(default):
        return field(default_factory=default, metadata={"option": spec})
    return field(default=MISSING if default is ... else default, metadata={"option": spec})


def options_of(group: Any) -> Iterator[tuple[Field[Any], Spec]]:
    """Yield the options of a dataclass or of an instance, inherited ones last."""
    _, *bases = (group if isinstance(group, type) else type(group)).__mro__
    inherited = {each.name for base in bases if is_dataclass(base) for each in fields(base)}
    for each in sorted(fields(group), key=lambda each: each.name in inherited):
        if "option" in each.metadata:
            yield each, each.metadata["option"]


def kinds_of(*groups: type) -> dict[str, Kind]:
    """Return the kinds of all options of some dataclasses, by name."""
    return {each.name: spec.kind for group in groups for each, spec in options_of(group)}


def check_options(group: Any) -> None:
    """Check every option of an instance.

    Raises:
        UserError: a value is of another kind; names the first one.
    """
    for each, spec in options_of(group):
        spec.kind.check(each.name, getattr(group, each.name))
