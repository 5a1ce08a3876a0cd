"""Processes that live and die together: all become ready, or all are taken down.

Knows nothing of a mesh. Groups start in order and end in reverse; one group ends at once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from chunkmesh.cli.child_process import ChildCommand, ChildProcess
from chunkmesh.cli.readiness import STARTING, Probe, Readiness
from chunkmesh.errors import ChunkMeshError

_POLL_S = 0.1


class ChildFailed(ChunkMeshError):
    """A process ended on its own or did not become ready; the text holds its last log lines."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChild:
    """A process to start and how to know that it serves."""

    command: ChildCommand
    probe: Probe
    address: str
    """Where it serves, for people."""
    role: str = ""
    """What it is there for: while another of the same role runs its death is no failure. Empty if
    nothing can stand in for it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChildState:
    """One process, for a status table."""

    name: str
    pid: int
    address: str
    readiness: Readiness


Observer = Callable[[tuple[ChildState, ...]], None]
"""Called several times a second while waiting; what it raises ends the wait."""


@dataclasses.dataclass(slots=True)
class _Member:
    planned: PlannedChild
    process: ChildProcess
    readiness: Readiness = STARTING
    is_missed: bool = False
    """Whether its death was told."""

    def state(self) -> ChildState:
        return ChildState(
            name=self.process.name,
            pid=self.process.pid,
            address=self.planned.address,
            readiness=self.readiness,
        )


class ProcessFamily:
    """Owns the processes. Every method runs on the thread that made it, `kill` also in signals."""

    def __init__(self, run_dir: Path, *, grace_s: float) -> None:
        """Logs go to run_dir; each group may take grace_s to end before SIGKILL."""
        self._run_dir = run_dir
        self._grace_s = grace_s
        self._groups: list[list[_Member]] = []

    def start(self, *group: PlannedChild) -> None:
        """Start processes that will end together."""
        members: list[_Member] = []
        self._groups.append(members)
        for planned in group:
            process = ChildProcess(planned.command, self._run_dir)
            members.append(_Member(planned=planned, process=process))

    def states(self) -> tuple[ChildState, ...]:
        """Return all processes in the order of their start, as of the last question."""
        return tuple(member.state() for group in self._groups for member in group)

    def wait_ready(self, timeout_s: float, observe: Observer) -> None:
        """Ask until every process is ready.

        Raises:
            ChildFailed: a process died, or one is not ready after timeout_s.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if gone := self.check():
                raise ChildFailed(gone[0])
            waiting = [m for m in self._members() if not m.readiness.ready]
            for member in waiting:
                member.readiness = member.planned.probe.ask()
            observe(self.states())
            waiting = [m for m in waiting if not m.readiness.ready]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise _not_ready(waiting[0], timeout_s)
            time.sleep(_POLL_S)

    def check(self) -> tuple[str, ...]:
        """Look whether all processes still run; return news of those that others stand in for.

        Raises:
            ChildFailed: another one has ended.
        """
        members = self._members()
        roles = {each.planned.role for each in members if each.process.exit_code() is None} - {""}
        news: list[str] = []
        for member in members:
            code = member.process.exit_code()
            if code is None or member.is_missed:
                continue
            if member.planned.role not in roles:
                raise ChildFailed(_died(member.process, code))
            member.is_missed = True
            news.append(_died(member.process, code))
        return tuple(news)

    def end(self, *names: str) -> None:
        """End processes, as far as they were started, while all others still serve them."""
        self._end([member for member in self._members() if member.process.name in names])

    def close(self) -> None:
        """End all processes, the last group first: SIGTERM, up to the grace, then SIGKILL.

        Returns only when none is left, also when it is interrupted.
        """
        try:
            for group in reversed(self._groups):
                self._end(group)
        finally:
            for member in self._members():
                member.process.reap()

    def kill(self) -> None:
        """Send SIGKILL to everything; `close` is still needed."""
        for member in self._members():
            member.process.kill()

    def _end(self, members: list[_Member]) -> None:
        for member in members:
            member.process.ask_to_end()
        deadline = time.monotonic() + self._grace_s
        while time.monotonic() < deadline and any(
            member.process.exit_code() is None for member in members
        ):
            time.sleep(0.02)
        for member in members:
            member.process.reap()

    def _members(self) -> list[_Member]:
        return [member for group in self._groups for member in group]


def _died(process: ChildProcess, code: int) -> str:
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return f"{process.name} ended with {how}{_last_lines(process)}"


def _not_ready(member: _Member, timeout_s: float) -> ChildFailed:
    process, state = member.process, member.readiness.state
    return ChildFailed(
        f"{process.name} is not ready after {timeout_s:g} s ({state}){_last_lines(process)}"
    )


def _last_lines(process: ChildProcess) -> str:
    return f"; the last lines of {process.log_path}:\n{process.log_tail()}"
