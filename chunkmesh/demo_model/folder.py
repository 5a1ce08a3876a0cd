"""Makes a folder once, complete or not at all, and checks it on every later use.

It is built beside its place under a file lock and then renamed. What a killed run left behind is
removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from chunkmesh.demo_model.manifest import find_damage, write_manifest
from chunkmesh.errors import ConfigError

_LOCK_DEADLINE_S = 3600.0
_LOCK_POLL_S = 0.2
_log = structlog.get_logger(__name__)


def ensure_folder(folder: Path, *, source_sha256: str, build: Callable[[Path, Path], None]) -> None:
    """Build the folder if it is missing, damaged or made from another source.

    build(scratch, built) fills the empty folder built; scratch is for files that it needs only
    meanwhile. At most one process builds at a time, the others wait for it.

    Raises:
        ConfigError: somebody has held the lock for an hour.
        OSError: a file cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    with _locked(folder.with_name(f".{folder.name}.lock")):
        _discard(partial)
        damage = find_damage(folder, source_sha256=source_sha256)
        if damage is None:
            return
        if folder.exists():
            _log.warning("folder damaged", folder=str(folder), damage=damage)
        scratch, built = partial / "scratch", partial / "built"
        try:
            scratch.mkdir(parents=True)
            built.mkdir()
            build(scratch, built)
            write_manifest(built, source_sha256=source_sha256)
            _discard(folder)
            built.rename(folder)
        finally:
            _discard(partial)


def _discard(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, waiting for another run to finish."""
    deadline = time.monotonic() + _LOCK_DEADLINE_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise ConfigError(f"another process has held {path} for an hour") from error
                time.sleep(_LOCK_POLL_S)
        yield
