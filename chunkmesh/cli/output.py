"""The console for results on standard output, wide enough for tables also where nobody looks."""

from __future__ import annotations

from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 120


def output_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or 120 columns without one."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)
