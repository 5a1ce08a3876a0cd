"""Threads that a service leaves behind when it ends, because they hang or work on for long.

An interpreter must not end under native code that a thread still runs, as that of torch does: it
aborts the process, whose status then says that it has crashed. So a process with such threads ends
at once (chunkmesh.service).
"""

from __future__ import annotations

import threading

_left: list[threading.Thread] = []


def leave(thread: threading.Thread) -> None:
    """Wait no longer for a daemon thread; it may still run when the process ends."""
    if thread.is_alive():
        _left.append(thread)


def still_run() -> bool:
    """Whether any that was left still runs."""
    return any(thread.is_alive() for thread in _left)
