"""Settings of TLS and keys: what does not go together is refused at the start, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.config import load
from chunkmesh.errors import ConfigError
from chunkmesh.trust.access import Role
from deploy.certs.certificates import write_all
from scheduler.guards import Guards, make_guards
from scheduler.settings import SchedulerSettings


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """Write certificates of all roles."""
    write_all(tmp_path / "certs")
    return tmp_path / "certs"


def _guards(*flags: str) -> Guards:
    return make_guards(load(SchedulerSettings, ["--model-path", "m", *flags], {}).settings)


def _mesh(certs: Path, role: str = "scheduler") -> tuple[str, ...]:
    """Return the flags of a certificate."""
    shown = ("--ssl-certfile", str(certs / f"{role}.crt"), "--ssl-keyfile")
    return (*shown, str(certs / f"{role}.key"), "--ssl-ca-certs", str(certs / "ca.crt"))


def test_without_flags_all_is_plain() -> None:
    """A mesh on one's own machine needs nothing."""
    guards = _guards()
    assert (None, None, None) == (guards.users.tls, guards.internal.tls, guards.hicache.tls)
    assert not guards.users.knows_users


def test_with_tls_the_internal_port_is_mutual_and_the_users_port_is_not(certs: Path) -> None:
    """Users have keys; services have certificates."""
    guards = _guards(*_mesh(certs))
    assert (False, True) == (guards.users.is_mutual, guards.internal.is_mutual)
    assert (True, True) == (guards.users.tls is not None, guards.hicache.tls is not None)
    assert Role.HICACHE is guards.hicache.server_role


def test_an_authority_of_users_makes_their_port_mutual(certs: Path) -> None:
    """Then nobody gets a connection without a certificate."""
    guards = _guards(*_mesh(certs), "--ssl-client-ca", str(certs / "ca.crt"))
    assert guards.users.is_mutual
    assert guards.users.knows_users


def test_the_users_port_may_have_a_certificate_of_its_own(certs: Path) -> None:
    """Of a public authority, which signs no scheduler.chunkmesh."""
    own = ("--users-ssl-certfile", str(certs / "client.crt"))
    guards = _guards(*_mesh(certs), *own, "--users-ssl-keyfile", str(certs / "client.key"))
    assert guards.users.tls is not None
    assert guards.users.tls.current().certificate == (certs / "client.crt").read_bytes()


@pytest.mark.parametrize(
    ("without", "named"),
    [
        ("--ssl-keyfile", "TLS between services needs --ssl-keyfile as well"),
        ("--ssl-ca-certs", "TLS between services needs --ssl-ca-certs as well"),
        ("--ssl-certfile", "TLS between services needs --ssl-certfile as well"),
    ],
)
def test_half_of_tls_is_refused(certs: Path, without: str, named: str) -> None:
    """Certificates without an authority to check the other end by would be no protection."""
    words = list(_mesh(certs))
    at = words.index(without)
    with pytest.raises(ConfigError, match=named):
        _guards(*words[:at], *words[at + 2 :])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--ssl-client-ca", "x"), "--ssl-client-ca needs --ssl-certfile"),
        (("--users-ssl-certfile", "x"), "--users-ssl-certfile and --users-ssl-keyfile need each"),
        (
            ("--users-ssl-certfile", "x", "--users-ssl-keyfile", "y"),
            "--users-ssl-certfile needs --ssl-certfile: with TLS for users, workers use it too",
        ),
        (("--api-key-file", "/nowhere"), "--api-key-file /nowhere: No such file"),
        (("--admin-api-key-file", "/nowhere"), "--admin-api-key-file /nowhere: No such file"),
    ],
)
def test_what_does_not_go_together_is_refused(flags: tuple[str, ...], named: str) -> None:
    """An internal port in plain text behind a users' port with TLS would be a false promise."""
    with pytest.raises(ConfigError, match=named):
        _guards(*flags)


def test_a_certificate_of_another_role_is_refused(certs: Path) -> None:
    """All workers would turn such a scheduler away, one by one."""
    with pytest.raises(ConfigError, match=r"worker\.crt: peers will refuse it: Hostname mismatch"):
        _guards(*_mesh(certs, "worker"))
