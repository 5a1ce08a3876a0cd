"""Starts our own programs as processes: as anybody does, or forked from one that has them loaded.

A forked one is there at once, for it need not import anything, and is the same otherwise; but what
it holds of memory is partly shared.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.forked_command import ForkedCommand, do_nothing

_BIN = Path(sys.executable).parent
WAIT_S = 100.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One process."""

    pid: int
    exit_status: Callable[[], int]
    """Waits for its end; minus the signal's number if it died of one."""
    has_ended: Callable[[], bool]
    """Whether it has, without a wait; its id may be another's then."""


def launch(command: tuple[str, ...], log: Path) -> Launched:
    """Start a program of ours with these flags; it appends to the log."""
    with log.open("ab") as end:
        process = subprocess.Popen([str(_BIN / command[0]), *command[1:]], stdout=end, stderr=end)
    return Launched(
        pid=process.pid,
        exit_status=lambda: process.wait(WAIT_S),
        has_ended=lambda: process.poll() is not None,
    )


def fork(command: tuple[str, ...], log: Path, prepare: Callable[[], None] = do_nothing) -> Launched:
    """Do the same by a fork that prepares itself first."""
    process = ForkedCommand(*command, log_path=log, prepare=prepare)
    return Launched(
        pid=process.pid,
        exit_status=lambda: process.wait(WAIT_S),
        has_ended=lambda: process.returncode is not None,
    )
