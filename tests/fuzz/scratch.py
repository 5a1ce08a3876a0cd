"""Folders for decoders that read files; removed at the end of the process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def scratch_folder() -> Path:
    """Return an empty folder, in memory where the system has such."""
    shared = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    folder = Path(
        tempfile.mkdtemp(prefix="chunkmesh-fuzz-", dir=shared if shared.is_dir() else None)
    )
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
