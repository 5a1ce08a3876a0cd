"""Where the demo model is kept, and what a user sees who lacks something."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.progress import Progress

import chunkmesh.demo_model
from chunkmesh.demo_model import MODEL_NAME, ensure_demo_model, model
from chunkmesh.errors import ConfigError


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative XDG_CACHE_HOME is to be ignored, as that specification says."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(model, "ensure_folder", lambda *_, **__: None)
    for given, expected in (
        (str(tmp_path / "elsewhere"), tmp_path / "elsewhere"),
        ("relative", tmp_path / ".cache"),
        ("", tmp_path / ".cache"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert ensure_demo_model() == expected / "chunkmesh" / "models" / MODEL_NAME


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An ImportError of gguf would tell a newcomer nothing."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "chunkmesh.demo_model.convert", None)
    monkeypatch.delattr(chunkmesh.demo_model, "convert", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'chunkmesh\[demo\]'"):
        ensure_demo_model(tmp_path, Progress(disable=True))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Such as a file in the folder's place."""
    (tmp_path / "chunkmesh").write_text("")
    with pytest.raises(ConfigError, match="cannot make the demo model"):
        ensure_demo_model(tmp_path, Progress(disable=True))
