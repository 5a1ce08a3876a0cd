"""The console for results on standard output, wide enough for tables also where nobody looks.

Brackets are text there: names of models, paths and addresses such as [fd00::1]:5001 are no markup.
"""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 120
_WIDEST_TABLE = 10_000


def output_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or 120 columns without one."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def print_table(console: Console, table: Table) -> None:
    """Print a table of which no figure is cut off, however narrow the terminal is.

    If it is too wide its cells are set closer, and what still does not fit goes on a line below.
    """
    unbounded = console.options.update(width=_WIDEST_TABLE)
    if Measurement.get(console, unbounded, table).maximum > console.width:
        table.padding = 0
        for column in table.columns:
            column.overflow = "fold"
    console.print(table)
