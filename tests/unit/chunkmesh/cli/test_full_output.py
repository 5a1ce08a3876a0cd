"""chunkmesh.cli.full_output: commands whose standard output takes no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_FULL = Path("/dev/full")


def _command(then: str) -> list[str]:
    """Return a shell command: the program's version, and then where that goes."""
    return ["bash", "-c", f'"$0" -m chunkmesh.cli --version {then}', sys.executable]


@pytest.mark.skipif(not _FULL.exists(), reason="only Linux has a device that is full")
def test_a_full_disk_is_one_line() -> None:
    """It was a traceback, or an exception that the interpreter ignored at its end."""
    ended = subprocess.run(_command(f">{_FULL}"), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        "chunkmesh: cannot write the output: No space left on device\n",
    )


@pytest.mark.parametrize("then", ["| true", ">&-"])
def test_a_reader_that_is_gone_hears_nothing(then: str) -> None:
    """As with `| head`, and in scripts that close what they do not read."""
    ended = subprocess.run(_command(then), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
