"""Files that change under a service, whatever else goes wrong meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chunkmesh.errors import ConfigError
from chunkmesh.trust.watched_files import RETRY_S, WatchedFiles


class _File:
    """A file, the reader of it, and the time."""

    def __init__(self, folder: Path) -> None:
        """Begin with one line."""
        self.path = folder / "file"
        self.path.write_text("first")
        self.fault = ""
        """Why it cannot be read, if so."""
        self.now_s = 0.0
        self.num_reads = 0
        self.watched = WatchedFiles(
            (self.path,), self._read, name="tested", clock_s=lambda: self.now_s
        )

    def _read(self) -> str:
        self.num_reads += 1
        if self.fault:
            raise ConfigError(self.fault)
        return self.path.read_text()


@pytest.fixture
def file(tmp_path: Path) -> _File:
    """Return a file that was read once."""
    return _File(tmp_path)


def test_what_could_not_be_read_for_a_moment_is_read_later(file: _File) -> None:
    """A revoked key would count for ever, or a new certificate never, until the next change."""
    file.path.write_text("second one")
    file.fault = "Too many open files"
    assert file.watched.current() == "first"
    file.fault, file.now_s = "", RETRY_S
    assert file.watched.current() == "second one"


def test_it_is_not_tried_at_every_look(file: _File) -> None:
    """To check a certificate takes a handshake, and calls may be many."""
    file.path.write_text("second one")
    file.fault = "not yet valid"
    for _ in range(5):
        file.now_s += RETRY_S / 8
        file.watched.current()
    assert file.num_reads == 2
    file.now_s += RETRY_S
    file.watched.current()
    assert file.num_reads == 3


def test_a_fault_is_told_once_and_so_is_its_end(file: _File) -> None:
    """The log of a service whose file stays broken must stay readable."""
    file.path.write_text("second one")
    with capture_logs() as lines:
        for file.fault in ("not yet valid", "not yet valid", "expired", "", ""):
            file.watched.current()
            file.now_s += RETRY_S
    assert [line.get("reason", line["event"]) for line in lines] == [
        "not yet valid",
        "expired",
        "files read again",
    ]


def test_what_is_as_it_was_is_not_read_again(file: _File) -> None:
    """A look costs microseconds."""
    for _ in range(3):
        file.now_s += 10 * RETRY_S
        file.watched.current()
    assert file.num_reads == 1
