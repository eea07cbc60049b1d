"""``generate --show-drafts``: which tokens of the output were drafted, step by step."""

from rich.console import Console


class DraftMarks:
    """Marks each step's accepted drafts, by colour or in brackets where stdout shows none."""

    def __init__(self) -> None:
        console = Console()
        in_colour = console.color_system is not None and not console.no_color
        self._marks = ("\x1b[1;32m", "\x1b[0m") if in_colour else ("[", "]")
        self._is_open = False

    def legend(self) -> str:
        """One line that explains the marks."""
        return f"Drafts: {'accepted in one step'.join(self._marks)} then the target's own token"

    def mark(self, text: str, from_draft: bool) -> str:
        """The text that came with a token, marked."""
        if not from_draft:
            return self.close() + text
        if not text or self._is_open:
            return text
        self._is_open = True
        return self._marks[0] + text

    def close(self) -> str:
        """Close the marks of a step that ended without a token of the target's own."""
        mark = self._marks[1] if self._is_open else ""
        self._is_open = False
        return mark
