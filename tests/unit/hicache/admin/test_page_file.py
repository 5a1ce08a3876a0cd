"""Files of exported pages: whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.errors import ConfigError
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin.page_file import PageFileWriter, check_page_file, read_page_file

MESSAGES = [
    pb.ExportResponse(digest=bytes([index]) * 32, fields=[pb.PageField(name=b"m", value=b"v" * 9)])
    for index in range(3)
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a file of three messages."""
    path = tmp_path / "pages"
    with PageFileWriter(path) as writer:
        for message in MESSAGES:
            writer.add(message)
        writer.end()
        num_bytes = writer.num_bytes
    assert num_bytes == path.stat().st_size
    return path


def test_what_was_written_is_read(file: Path) -> None:
    """Nothing is lost or put in another order."""
    check_page_file(file)
    assert MESSAGES == list(read_page_file(file))


def test_a_file_is_there_only_when_whole(tmp_path: Path) -> None:
    """An export that broke off must not be taken for a backup."""
    path = tmp_path / "pages"

    def break_off() -> None:
        with PageFileWriter(path) as writer:
            writer.add(MESSAGES[0])
            raise ConnectionError

    with pytest.raises(ConnectionError):
        break_off()
    assert [] == list(tmp_path.iterdir())


def test_every_cut_is_noticed(file: Path, tmp_path: Path) -> None:
    """A copy that ran out of disk is refused before anything is imported."""
    data = file.read_bytes()
    cut = tmp_path / "cut"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        with pytest.raises(ConfigError, match="cut"):
            check_page_file(cut)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, b"X", "no file of exported pages"),
        (7, b"\x02", "another version"),
        (8, b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        (-8, b"\x09", "3 messages, not 9"),
    ],
)
def test_damage_is_named(file: Path, at: int, value: bytes, words: str) -> None:
    """Lengths are not believed: a hostile one would eat the memory."""
    data = bytearray(file.read_bytes())
    start = at % len(data)
    data[start : start + len(value)] = value
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        check_page_file(file)
    with pytest.raises(ConfigError, match=words):
        list(read_page_file(file))


def test_something_behind_the_end_is_named(file: Path) -> None:
    """Two files joined by mistake are not one."""
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ConfigError, match="stands behind its end"):
        check_page_file(file)


def test_a_damaged_message_is_named(file: Path) -> None:
    """The check of the form does not look into messages; reading does."""
    data = bytearray(file.read_bytes())
    data[12:16] = b"\xff\xff\xff\xff"
    file.write_bytes(data)
    check_page_file(file)
    with pytest.raises(ConfigError, match="message 0"):
        list(read_page_file(file))
