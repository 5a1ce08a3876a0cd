"""Which program made a result, when, and on what: a figure without that cannot be checked."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from chunkmesh import __version__

_TIMEOUT_S = 5


class Origin(TypedDict):
    """As a result file has it."""

    date: str
    """UTC, ISO 8601."""
    command: str
    version: str
    """Of this client; the server's stands in what it tells of itself."""
    commit: str | None
    """Of a checkout, with -dirty where files have changed; None of an installed package."""
    client: str
    """Cores and Python of the machine that measured."""


def origin() -> Origin:
    """Describe this process."""
    return Origin(
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        command=shlex.join(["chunkmesh", *sys.argv[1:]]),
        version=__version__,
        commit=_commit(Path(__file__).parents[2]),
        client=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    )


def _commit(folder: Path) -> str | None:
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],  # noqa: S607
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
