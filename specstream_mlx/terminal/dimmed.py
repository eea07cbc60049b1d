"""Text that is dimmed where standard output shows styles."""


class Dimmed:
    """Turns dimming on and off."""

    def __init__(self) -> None:
        from rich.console import Console

        console = Console()
        self._has_styles = console.color_system is not None and not console.no_color
        self._is_on = False

    def turn(self, on: bool) -> str:
        """Return what to print before text that is to be dimmed, or not."""
        if on is self._is_on or not self._has_styles:
            return ""
        self._is_on = on
        return "\x1b[2m" if on else "\x1b[0m"
