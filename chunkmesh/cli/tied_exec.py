"""Becomes another program that dies with its parent, even when the parent is killed by SIGKILL.

Run as a script: `python -I -S tied_exec.py PARENT_PID PROGRAM ARGUMENT...`. It stands in a process
of its own because code between fork and exec is unsafe in a parent that has threads. Linux only.
Source: https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL at the parent's end, then exec the program.

    The kernel's "parent" is the thread that started this process, not its whole process.
    """
    parent_pid, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent_pid):
        sys.exit("the parent is gone already")
    os.execvp(command[0], command)  # noqa: S606 - becoming the given program is the purpose


if __name__ == "__main__":
    main()
