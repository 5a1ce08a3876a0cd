"""One process of a mesh: started in a group of its own, logging to a file, and never left behind.

Three things end it: `stop` by its owner, SIGKILL of its whole group, and the kernel when the
thread that started it ends (see tied_exec). It is not restarted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from chunkmesh.cli import tied_exec

_TAIL_BYTES = 16384


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChildCommand:
    """What to run and under which name to speak of it."""

    name: str
    """Such as worker-0; unique in a mesh, also the name of its log file."""
    command: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Added to the parent's environment."""


class ChildProcess:
    """Owns one running process. Start it from a thread that outlives it."""

    def __init__(self, command: ChildCommand, run_dir: Path) -> None:
        """Start it; its standard output and error go to run_dir/NAME.log."""
        self.name = command.name
        self.log_path = run_dir / f"{command.name}.log"
        launcher = (sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()))
        with self.log_path.open("wb") as log:
            self._popen = subprocess.Popen(  # noqa: S603 - starting our own services is the purpose
                (*launcher, *command.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **command.environment},
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._exit_code: int | None = None

    def exit_code(self) -> int | None:
        """Return how it ended (minus the signal's number if by a signal), None while it runs.

        The process is looked at, not reaped: its id, and so its group's, stays ours.
        """
        if self._exit_code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                exited = ended.si_code == os.CLD_EXITED
                self._exit_code = ended.si_status if exited else -ended.si_status
        return self._exit_code

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process alone; it takes care of what it started."""
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, unless it was reaped."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Kill what is left of the group and release the process id. Blocks for a moment only."""
        self.kill()
        exit_code = self._popen.wait()
        if self._exit_code is None:
            self._exit_code = exit_code

    def log_tail(self, num_lines: int = 15) -> str:
        """Return the last lines of its log."""
        with self.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])
