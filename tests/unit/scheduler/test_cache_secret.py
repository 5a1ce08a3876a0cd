"""The secret of page keys, read from a file that people write."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chunkmesh.errors import ConfigError
from scheduler.cache_secret import read_cache_secret

SECRET = b"0123456789abcdef"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_ends_of_lines_do_not_count(tmp_path: Path, end: bytes) -> None:
    """An editor's last line end must not make another mesh's cache of it."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET + end)
    file.chmod(0o640)
    with capture_logs() as lines:
        assert SECRET == read_cache_secret(file, name="it")
    assert [] == lines


def test_bytes_may_be_any(tmp_path: Path) -> None:
    """What comes out of /dev/urandom is no text."""
    secret = bytes(range(255, 223, -1))
    file = tmp_path / "secret"
    file.write_bytes(secret)
    assert secret == read_cache_secret(file, name="it")


@pytest.mark.parametrize("num_bytes", [16, 4096])
def test_the_limits_are_allowed(tmp_path: Path, num_bytes: int) -> None:
    """Errors name them as the least and the most."""
    file = tmp_path / "secret"
    file.write_bytes(b"s" * num_bytes)
    assert read_cache_secret(file, name="it") == b"s" * num_bytes


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes, at least 16"),
        (b"\n", "0 bytes, at least 16"),
        (SECRET[:-1] + b"\n", "15 bytes, at least 16"),
        (bytes(32), "0 bytes, at least 16"),
        (bytes(4097), "more than 4096 bytes"),
    ],
    ids=["empty", "empty line", "short", "only zeros", "long"],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """Zeros are as good as no secret to HMAC, so a file of them would protect nothing."""
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^--cache-secret-file f: {reason}"):
        read_cache_secret(file, name="--cache-secret-file f")


@pytest.mark.parametrize(("name", "reason"), [("gone", "No such file"), (".", "Is a directory")])
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """A scheduler that went on without its secret would find nothing, or share too much."""
    with pytest.raises(ConfigError, match=f"^it: {reason}"):
        read_cache_secret(tmp_path / name, name="it")


def test_a_file_that_others_can_read_is_told(tmp_path: Path) -> None:
    """It works, as mounted secrets have to, but nobody should find out by accident."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o644)
    with capture_logs() as lines:
        assert SECRET == read_cache_secret(file, name="it")
    assert [("warning", "644")] == [(line["log_level"], line["mode"]) for line in lines]
    assert "0123" not in str(lines)
