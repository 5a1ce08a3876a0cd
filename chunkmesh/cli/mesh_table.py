"""Shows the processes of a mesh while they start: a live table, or plain lines without a terminal.

Always on standard error, so that standard output stays for endpoints.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from chunkmesh.cli.process_family import ChildState


class MeshTable:
    """Draws states as they come; leaves the last table standing."""

    def __init__(self, console: Console) -> None:
        """Draw on console."""
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the table as it is; calling it again does nothing."""
        if self._live is not None:
            self._live.stop()

    def show(self, states: tuple[ChildState, ...]) -> None:
        """Draw the states; as plain lines only what changed."""
        if self._live is not None:
            self._live.update(state_table(states), refresh=True)
            return
        for state in states:
            if self._said.get(state.name) != state.readiness.state:
                self._said[state.name] = state.readiness.state
                line = f"{state.name} (pid {state.pid}, {state.address}): {state.readiness.state}"
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def state_table(states: tuple[ChildState, ...]) -> Table:
    """Return one row a process."""
    table = Table("process", "state", "progress", "pid", "address")
    for state in states:
        colour = "green" if state.readiness.ready else "yellow"
        progress = state.readiness.progress
        table.add_row(
            state.name,
            f"[{colour}]{state.readiness.state}[/]",
            "" if progress is None or state.readiness.ready else f"{progress:.0%}",
            str(state.pid),
            state.address,
        )
    return table
