"""Tables of commands, on stdout."""

from collections.abc import Iterable, Sequence


def print_table(
    rows: Iterable[Sequence[str]],
    headings: Sequence[str] = (),
    *,
    title: str | None = None,
    figures: int = 0,
) -> None:
    """Print a table, folded to the terminal's width; its last ``figures`` columns are numbers."""
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    table = Table(
        box=None,
        pad_edge=False,
        show_header=bool(headings),
        title=title,
        title_justify="left",
        title_style="bold",
    )
    headings = headings or [""] * len(rows[0])
    for number, heading in enumerate(headings):
        if number >= len(headings) - figures:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold", no_wrap=not heading and not number)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
