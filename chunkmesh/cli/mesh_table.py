"""Shows the processes of a mesh while they start: a live table, or plain lines without a terminal.

Always on standard error, so that standard output stays for endpoints.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chunkmesh.cli.process_family import ChildState

_LEAST_PAUSE_S = 5.0
"""Between two lines about the same state of a process."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """The last line about a process."""

    text: str
    at_s: float


class MeshTable:
    """Draws states as they come; leaves the last table standing."""

    def __init__(self, console: Console, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Draw on console."""
        self._console = console
        self._clock_s = clock_s
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._said: dict[str, _Said] = {}

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
        """Draw the states; as plain lines only what changed, and reasons at a limited rate."""
        if self._live is not None:
            self._live.update(state_table(states), refresh=True)
            return
        for state in states:
            text, now_s = state.readiness.state, self._clock_s()
            if _is_news(self._said.get(state.name), text, now_s):
                self._said[state.name] = _Said(text=text, at_s=now_s)
                line = f"{state.name} (pid {state.pid}, {state.address}): {text}"
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _is_news(said: _Said | None, text: str, now_s: float) -> bool:
    """Return whether a line is due: a new state at once, a new reason for it after a while."""
    if said is None or said.text.partition(":")[0] != text.partition(":")[0]:
        return True
    return said.text != text and now_s - said.at_s >= _LEAST_PAUSE_S


def state_table(states: tuple[ChildState, ...]) -> Table:
    """Return one row a process."""
    table = Table("process", "state", "progress", "pid", "address")
    for state in states:
        colour = "green" if state.readiness.ready else "yellow"
        progress = state.readiness.progress
        table.add_row(
            state.name,
            Text(state.readiness.state, style=colour),
            "" if progress is None or state.readiness.ready else f"{progress:.0%}",
            str(state.pid),
            Text(state.address),  # brackets of an IPv6 address are no markup
        )
    return table
