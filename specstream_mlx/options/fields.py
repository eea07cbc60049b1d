"""Options as fields of dataclasses."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

from .kinds import Kind, optional


@dataclass(frozen=True)
class Spec:
    """What a field of options says besides its type and default.

    Attributes:
        kind: what it may be; there may be none where its default is ``None``.
        help: what it does. A help page that cannot show the default itself adds it, if ``help``
            names none.
        flags: names on the command line, if they are not made from the field's.
        metavar: see ``Kind``.
        panel: heading of a help page that it stands under; ``None``: its class's ``PANEL``.
        hidden: whether it is set in Python and configuration files alone.
    """

    kind: Kind
    help: str
    flags: tuple[str, ...]
    metavar: str | None
    panel: str | None
    hidden: bool


def option(
    default: Any,
    kind: Kind,
    help: str = "",
    *flags: str,
    metavar: str | None = None,
    panel: str | None = None,
    hidden: bool = False,
) -> Any:
    """A field that is an option, see ``Spec``; ``...`` as a default: it must be given."""
    kind = optional(kind) if default is None else kind
    spec = Spec(kind, help, flags, metavar or kind.metavar, panel, hidden)
    if callable(default):
        return field(default_factory=default, metadata={"option": spec})
    return field(default=MISSING if default is ... else default, metadata={"option": spec})


def options_of(group: Any) -> Iterator[tuple[Field[Any], Spec]]:
    """The options of a dataclass or of an instance, those that it inherits last."""
    _, *bases = (group if isinstance(group, type) else type(group)).__mro__
    inherited = {each.name for base in bases if is_dataclass(base) for each in fields(base)}
    for each in sorted(fields(group), key=lambda each: each.name in inherited):
        if "option" in each.metadata:
            yield each, each.metadata["option"]


def kinds_of(*groups: type) -> dict[str, Kind]:
    """The kinds of all options of some dataclasses, by name."""
    return {each.name: spec.kind for group in groups for each, spec in options_of(group)}


def check_options(group: Any) -> None:
    """Check every option of an instance.

    Raises:
        UserError: a value is of another kind; names the first one.
    """
    for each, spec in options_of(group):
        spec.kind.check(each.name, getattr(group, each.name))
