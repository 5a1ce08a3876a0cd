"""Turns --model-path into a folder; the word demo stands for the demo model."""

from __future__ import annotations

from pathlib import Path

from chunkmesh.demo_model import ensure_demo_model


def model_folder(text: str) -> Path:
    """Return the folder, absolute; the demo model is made first if need be.

    Raises:
        ConfigError: the demo model cannot be made.
    """
    if text == "demo":
        return ensure_demo_model()
    return Path(text).expanduser().resolve()
