"""Lets the stage workers of one machine compile one after another, to measure what it costs.

A lock on a file is held meanwhile; the kernel gives it back when its process dies.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until no other process is inside; blocks, on a thread of the caller's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
