"""The console for results on standard output, wide enough for tables also where nobody looks.

Brackets are text there: names of models, paths and addresses such as [fd00::1]:5001 are no markup.
"""

from __future__ import annotations

from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 120


def output_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or 120 columns without one."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console
