"""chunkmesh.cli.mesh_table: what a start-up prints where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from chunkmesh.cli.mesh_table import MeshTable, state_table
from chunkmesh.cli.process_family import ChildState
from chunkmesh.cli.readiness import READY, Readiness


class _Shown:
    """A table without a terminal, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._file = io.StringIO()
        self._table = MeshTable(Console(file=self._file, width=200), lambda: self.now_s)

    def show(self, readiness: Readiness) -> list[str]:
        """Show one process and return what is said of it that is new."""
        before = len(self._file.getvalue())
        self._table.show((ChildState(name="w", pid=1, address="a:1", readiness=readiness),))
        return self._file.getvalue()[before:].splitlines()


def _profiling(done: int) -> Readiness:
    return Readiness(ready=False, state=f"profiling: {done} of 60 times measured")


def test_a_new_state_is_said_at_once() -> None:
    """Whoever reads a log of CI wants to know when what was ready."""
    shown = _Shown()
    assert shown.show(Readiness(ready=False, state="loading")) == ["w (pid 1, a:1): loading"]
    assert shown.show(_profiling(0)) == ["w (pid 1, a:1): profiling: 0 of 60 times measured"]
    assert shown.show(READY) == ["w (pid 1, a:1): ready"]
    assert shown.show(READY) == []


def test_a_state_that_counts_is_said_at_a_limited_rate() -> None:
    """Sixty measurements would be sixty lines a worker; the latest is said when its time comes."""
    shown = _Shown()
    shown.show(_profiling(0))
    said = []
    for tick in range(1, 101):
        shown.now_s = tick / 10
        said += shown.show(_profiling(tick // 2))
    assert [line.split()[5] for line in said] == ["25", "50"]


def test_the_table_shows_brackets_as_they_are() -> None:
    """`up --host ::1` listens on [fd00::1]:50051 or the like; markup would leave the port alone."""
    file = io.StringIO()
    readiness = Readiness(ready=False, state="waiting for [fd00::1]:5001")
    state = ChildState(name="w", pid=1, address="[fd00::1]:5001", readiness=readiness)
    Console(file=file, width=200).print(state_table((state,)))
    assert file.getvalue().count("[fd00::1]:5001") == 2
