"""Starts our own programs as processes: as anybody does, or forked from one that has them loaded.

A forked one is there at once, for it need not import anything, and is the same otherwise; but what
it holds of memory is partly shared.
"""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_BIN = Path(sys.executable).parent
_MODULES = {
    "chunkmesh-scheduler": "scheduler.__main__",
    "hicache-server": "hicache.__main__",
    "stage-worker": "stage_worker.__main__",
}
WAIT_S = 100.0
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(list(_MODULES.values()))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One process."""

    pid: int
    exit_status: Callable[[], int]
    """Waits for its end; minus the signal's number if it died of one."""
    has_ended: Callable[[], bool]
    """Whether it has, without a wait; its id may be another's then."""


def _do_nothing() -> None:
    """Be as the parent is."""


def launch(command: tuple[str, ...], log: Path) -> Launched:
    """Start a program of ours with these flags; it appends to the log."""
    with log.open("ab") as end:
        process = subprocess.Popen([str(_BIN / command[0]), *command[1:]], stdout=end, stderr=end)
    return Launched(
        pid=process.pid,
        exit_status=lambda: process.wait(WAIT_S),
        has_ended=lambda: process.poll() is not None,
    )


def fork(
    command: tuple[str, ...], log: Path, prepare: Callable[[], None] = _do_nothing
) -> Launched:
    """Do the same by a fork that prepares itself first; it is killed when this process exits."""
    process = _FORKED.Process(target=_be, args=(command, str(log), prepare), daemon=True)
    process.start()

    def exit_status() -> int:
        process.join(WAIT_S)
        assert process.exitcode is not None, f"{command[0]} does not end"
        return process.exitcode

    assert process.pid is not None
    return Launched(
        pid=process.pid, exit_status=exit_status, has_ended=lambda: not process.is_alive()
    )


def _be(command: tuple[str, ...], log: str, prepare: Callable[[], None]) -> None:
    """Be one of our programs."""
    prepare()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    sys.argv = list(command)
    importlib.import_module(_MODULES[command[0]]).main()
