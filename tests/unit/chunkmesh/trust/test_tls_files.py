"""Certificate files: what does not do is said at the start, in words, and never replaces what does.

Each file is real; OpenSSL judges it as peers will.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chunkmesh.errors import ConfigError
from chunkmesh.trust.access import Role
from chunkmesh.trust.metrics import RELOADS
from chunkmesh.trust.tls_files import TlsPaths, tls_files
from deploy.certs.certificates import Authority
from tests.certificates import files_of, new_authority

WORKER = ("worker.chunkmesh",)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Make the mesh's."""
    return new_authority(tmp_path / "mesh")


def _paths(authority: Authority, *names: str, days: float = 1) -> TlsPaths:
    issued = authority.issue("mine", "w", names, days=days)
    return TlsPaths(certfile=issued.certfile, keyfile=issued.keyfile, ca_certs=authority.certfile)


def test_a_good_certificate_is_read(authority: Authority) -> None:
    """Names beside the role's do no harm."""
    paths = _paths(authority, "localhost", *WORKER)
    pems = tls_files(paths, name="mesh", role=Role.WORKER).current()
    assert paths.certfile is not None
    assert pems.certificate == paths.certfile.read_bytes()


def _other_authority(paths: TlsPaths, tmp_path: Path) -> TlsPaths:
    return dataclasses.replace(paths, ca_certs=new_authority(tmp_path / "other").certfile)


def _other_key(paths: TlsPaths, tmp_path: Path) -> TlsPaths:
    other = new_authority(tmp_path / "other").issue("x", "x", WORKER)
    return dataclasses.replace(paths, keyfile=other.keyfile)


def _no_certificate(paths: TlsPaths, tmp_path: Path) -> TlsPaths:
    text = tmp_path / "text"
    text.write_text("hello")
    return dataclasses.replace(paths, certfile=text)


def _half_certificate(paths: TlsPaths, tmp_path: Path) -> TlsPaths:
    half = tmp_path / "half"
    assert paths.certfile is not None
    half.write_bytes(paths.certfile.read_bytes()[:200])
    return dataclasses.replace(paths, certfile=half)


def _no_authority(paths: TlsPaths, tmp_path: Path) -> TlsPaths:
    empty = tmp_path / "empty"
    empty.write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    return dataclasses.replace(paths, ca_certs=empty)


def _gone(paths: TlsPaths, tmp_path: Path) -> TlsPaths:
    return dataclasses.replace(paths, ca_certs=tmp_path / "gone")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_other_authority, "--ssl-certfile .*: peers will refuse it: .*local issuer"),
        (_other_key, "--ssl-certfile .*, --ssl-keyfile .*: .*key values mismatch"),
        (_no_certificate, "--ssl-certfile .*: no PEM file"),
        (_half_certificate, "--ssl-certfile .*half, --ssl-keyfile"),
        (_no_authority, "--ssl-ca-certs .*empty: "),
        (_gone, "--ssl-ca-certs .*gone: No such file"),
    ],
)
def test_what_does_not_do_is_refused(
    authority: Authority,
    tmp_path: Path,
    spoil: Callable[[TlsPaths, Path], TlsPaths],
    reason: str,
) -> None:
    """A service that came up all the same would be refused by every peer, in worse words."""
    paths = spoil(_paths(authority, *WORKER), tmp_path)
    with pytest.raises(ConfigError, match=reason):
        tls_files(paths, name="mesh", role=Role.WORKER)


@pytest.mark.parametrize(
    ("names", "days", "reason"),
    [
        (("hicache.chunkmesh",), 1, "Hostname mismatch"),
        (("localhost",), 1, "Hostname mismatch"),
        (WORKER, -1, "certificate has expired"),
    ],
    ids=["another role", "no role", "expired"],
)
def test_a_certificate_that_peers_refuse(
    authority: Authority, names: tuple[str, ...], days: float, reason: str
) -> None:
    """Its role and its time are looked at by the service itself first."""
    with pytest.raises(ConfigError, match=f"peers will refuse it: .*{reason}"):
        tls_files(_paths(authority, *names, days=days), name="mesh", role=Role.WORKER)


def test_a_key_that_others_write_is_refused(authority: Authority) -> None:
    """It is as good as no key."""
    paths = _paths(authority, *WORKER)
    assert paths.keyfile is not None
    paths.keyfile.chmod(0o666)
    with pytest.raises(ConfigError, match=r"--ssl-keyfile .*others can write it"):
        tls_files(paths, name="mesh")


def test_new_files_are_used_and_broken_ones_are_not(authority: Authority) -> None:
    """In the middle of a rotation key and certificate do not match: the old pair goes on."""
    files = files_of(authority.issue("mine", "w", WORKER), authority, Role.WORKER)
    old = files.current()
    failed = RELOADS.labels("test", "failed")
    before = failed._value.get()
    issued = authority.issue("next", "w", WORKER)
    mine = authority.folder / "mine.crt"
    mine.write_bytes(issued.certfile.read_bytes())
    with capture_logs() as lines:
        assert files.current() is old
        assert files.current() is old
    (line,) = lines
    assert ("error", "files kept as they were") == (line["log_level"], line["event"])
    assert before + 1 == failed._value.get()
    (authority.folder / "mine.key").write_bytes(issued.keyfile.read_bytes())
    assert files.current().certificate == issued.certfile.read_bytes()


def test_a_removed_file_changes_nothing(authority: Authority) -> None:
    """A volume that is mounted anew is empty for a moment."""
    issued = authority.issue("mine", "w", WORKER)
    files = files_of(issued, authority)
    old = files.current()
    issued.certfile.unlink()
    assert files.current() is old


def test_a_link_that_is_turned_is_noticed(authority: Authority, tmp_path: Path) -> None:
    """Kubernetes swaps a link to a folder, and no file in it changes."""
    link = tmp_path / "now"
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        issued = authority.issue(name, "w", WORKER)
        issued.certfile.rename(folder / "tls.crt")
        issued.keyfile.rename(folder / "tls.key")
    link.symlink_to(tmp_path / "first")
    paths = TlsPaths(
        certfile=link / "tls.crt", keyfile=link / "tls.key", ca_certs=authority.certfile
    )
    files = tls_files(paths, name="test")
    (tmp_path / "turned").symlink_to(tmp_path / "second")
    (tmp_path / "turned").rename(link)
    assert files.current().certificate == (tmp_path / "second" / "tls.crt").read_bytes()
