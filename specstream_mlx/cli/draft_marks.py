"""``generate --show-drafts``: which tokens of the output were drafted, step by step."""

from rich.console import Console
from rich.style import Style

_STYLES = (Style(color="green", bold=True), Style(color="magenta", bold=True))


class DraftMarks:
    """Marks each step's accepted drafts and leaves its correction token plain.

    In colour, steps take turns; where stdout shows no colour, a step's drafts are put in brackets.
    """

    def __init__(self) -> None:
        console = Console()
        self._in_colour = console.color_system is not None and not console.no_color
        self._step = 0
        self._open = False

    def legend(self) -> str:
        """One line that explains the marks."""
        if not self._in_colour:
            return "Drafts: [accepted in one step] then the target's own token"
        this, following = _STYLES
        return (
            f"Drafts: {this.render('accepted in one step')}, {following.render('in the next')}; "
            "the target's own tokens are plain"
        )

    def mark(self, text: str, from_draft: bool) -> str:
        """The text that came with a token, marked."""
        style = _STYLES[self._step % len(_STYLES)]
        if not from_draft:
            self._step += 1
        if self._in_colour:
            return style.render(text) if from_draft and text else text
        if from_draft and text and not self._open:
            self._open = True
            return "[" + text
        return text if from_draft else self.close() + text

    def close(self) -> str:
        """Close the marks of a step that ended without a token of the target's own."""
        bracket = "]" if self._open else ""
        self._open = False
        return bracket
