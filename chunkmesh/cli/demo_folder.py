"""Turns --model-path into a folder; the word demo stands for the demo model."""

from __future__ import annotations

import re
from pathlib import Path

from chunkmesh.demo_model import ensure_demo_model
from chunkmesh.errors import ConfigError


def model_folder(text: str) -> Path:
    """Return the folder, absolute; the demo model is made first if need be.

    Raises:
        ConfigError: the demo model cannot be made, or there is no such folder.
    """
    if text == "demo":
        return ensure_demo_model()
    folder = Path(text).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.exists():
        raise ConfigError(f"{text} is a file; give the folder of a model, or demo")
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) is not None
    why = "; models are not downloaded by their names on a hub" if is_hub_id else ""
    raise ConfigError(f"there is no folder {text}{why}; give the folder of a model, or demo")
