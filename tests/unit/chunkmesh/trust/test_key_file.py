"""Bearer keys from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chunkmesh.errors import ConfigError
from chunkmesh.trust.key_file import MAX_FILE_BYTES, key_file, read_keys

KEY = "sk-0123456789abcdef"
OTHER = "sk-fedcba9876543210"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that only its owner sees."""
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    return path


def test_keys_and_their_tenants(path: Path) -> None:
    """Lines that people write for themselves do not count."""
    path.write_text(f"# of the blue team\n{KEY} blue\n\n  {OTHER}\n")
    ring = key_file(path, flag="--api-key-file").current()
    assert (2, "blue", "") == (len(ring), ring.tenant_of(KEY), ring.tenant_of(OTHER))


@pytest.mark.parametrize("offered", ["", KEY[:-1], KEY + "0", KEY.upper(), f"{KEY} blue", "blue"])
def test_what_is_no_key(path: Path, offered: str) -> None:
    """Neither a part of a key nor a tenant's name lets anybody in."""
    path.write_text(f"{KEY} blue\n")
    assert read_keys(path, name="it").tenant_of(offered) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no key in it"),
        ("# none\n", "no key in it"),
        ("short", "line 1: a key has 16 to 512 printable ASCII characters"),
        ("x" * 513, "line 1: a key has 16 to 512 printable ASCII characters"),
        (f"{KEY}\N{LATIN SMALL LETTER E WITH ACUTE}", "line 1: a key has"),
        (f"{KEY} two names", "line 1: behind the key at most a tenant"),
        (f"{KEY} a/b", "line 1: behind the key at most a tenant"),
        (f"{KEY} a\n{KEY} b", "line 2: a key that an earlier line has"),
        ("\0" * 20, "line 1: a key has"),
        ("#" * (MAX_FILE_BYTES + 1), "more than 1048576 bytes"),
    ],
    ids=["empty", "comment", "short", "long", "accent", "two", "slash", "twice", "zeros", "size"],
)
def test_what_is_no_key_file(path: Path, text: str, reason: str) -> None:
    """The line is named and never shown: it holds a key."""
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        key_file(path, flag="--api-key-file")
    assert str(caught.value).startswith(f"--api-key-file {path}: ")
    assert KEY not in str(caught.value)


def test_a_changed_file_counts_at_once(path: Path) -> None:
    """Keys are given and revoked without a restart."""
    path.write_text(KEY)
    keys = key_file(path, flag="--api-key-file")
    path.write_text(f"{OTHER} green")
    ring = keys.current()
    assert (None, "green") == (ring.tenant_of(KEY), ring.tenant_of(OTHER))


def test_an_emptied_file_revokes_all(path: Path) -> None:
    """Nothing is more urgent than that."""
    path.write_text(KEY)
    keys = key_file(path, flag="--api-key-file")
    path.write_text("")
    assert keys.current().tenant_of(KEY) is None


def test_a_broken_file_changes_nothing(path: Path) -> None:
    """A slip of the editor must not lock all users out, and is told without the keys."""
    path.write_text(KEY)
    keys = key_file(path, flag="--api-key-file")
    path.write_text(f"{OTHER}\nshort-secret")
    with capture_logs() as lines:
        assert "" == keys.current().tenant_of(KEY)
        assert "" == keys.current().tenant_of(KEY)
    assert [("error", "files kept as they were")] == [
        (line["log_level"], line["event"]) for line in lines
    ]
    assert "short-secret" not in str(lines)


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_file_that_others_read_is_told(path: Path, mode: int) -> None:
    """It works, as mounted secrets have to."""
    path.write_text(KEY)
    path.chmod(mode)
    with capture_logs() as lines:
        assert len(read_keys(path, name="it")) == 1
    assert [("warning", f"{mode:o}")] == [(line["log_level"], line["mode"]) for line in lines]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_write_is_refused(path: Path, mode: int) -> None:
    """Whoever can write it could give himself a key."""
    path.write_text(KEY)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"group or others can write it .*chmod 600"):
        read_keys(path, name="it")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A service that went on without would be open, or closed, to everybody."""
    with pytest.raises(ConfigError, match=r"--admin-api-key-file .*: No such file"):
        key_file(tmp_path / "gone", flag="--admin-api-key-file")


def test_no_key_stays_in_memory_as_it_is(path: Path) -> None:
    """What a ring shows, in a log or a debugger, is no key."""
    path.write_text(f"{KEY} blue")
    ring = read_keys(path, name="it")
    assert KEY not in repr(vars(ring))
