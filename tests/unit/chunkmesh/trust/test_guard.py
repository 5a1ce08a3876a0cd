"""Whom a guard takes a caller for, where certificates and keys could say different things."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.errors import Forbidden
from chunkmesh.trust.access import Door, Role
from chunkmesh.trust.guard import TENANT_KEY, Guard, on_behalf
from chunkmesh.trust.identity import Identity
from chunkmesh.trust.key_file import KeyFile, key_file

KEY = "one-key-0123456789"
_CLIENT, _ADMIN = frozenset({Role.CLIENT}), frozenset({Role.ADMIN})


def _keys(folder: Path, name: str, text: str) -> KeyFile:
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(text)
    return key_file(path, flag=f"--{name}")


def _peer(common_name: str, *names: str) -> dict[str, list[bytes]]:
    return {
        "peer_dns": [name.encode() for name in names],
        "x509_common_name": [common_name.encode()],
    }


def test_a_key_of_both_files_is_an_operators(tmp_path: Path) -> None:
    """Whoever gave it to an operator as well meant him to be one."""
    guard = Guard(
        door=Door.USERS,
        api_keys=_keys(tmp_path, "users", f"{KEY} blue"),
        admin_keys=_keys(tmp_path, "admins", KEY),
    )
    assert Identity(roles=_ADMIN) == guard.by_key([("authorization", f"Bearer {KEY}")])


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (_peer("blue"), Identity(roles=_CLIENT, name="blue", tenant="blue")),
        (
            _peer("blue", "client.chunkmesh"),
            Identity(roles=_CLIENT, name="blue", tenant="blue"),
        ),
        (
            _peer("w", "worker.chunkmesh"),
            Identity(roles=frozenset({Role.WORKER}), name="w", tenant="w"),
        ),
        (_peer("boss", "admin.chunkmesh"), Identity(roles=_ADMIN, name="boss")),
    ],
    ids=["of nobody", "a client's", "a worker's", "an operator's"],
)
def test_whom_a_certificate_at_the_users_port_names(
    peer: dict[str, list[bytes]], expected: Identity
) -> None:
    """A worker's does not make a user of a worker; an operator belongs to no tenant."""
    assert expected == Guard(door=Door.USERS, is_mutual=True).identify(None, peer)


def test_an_operators_certificate_needs_no_key(tmp_path: Path) -> None:
    """Where users need both."""
    guard = Guard(door=Door.USERS, is_mutual=True, api_keys=_keys(tmp_path, "users", KEY))
    told = guard.identify(None, _peer("boss", "admin.chunkmesh"))
    assert Identity(roles=_ADMIN, name="boss") == told


def test_a_certificate_inside_the_mesh_is_what_it_says() -> None:
    """No name, no role: the authority may have signed other things."""
    guard = Guard(door=Door.INTERNAL, is_mutual=True)
    assert Identity(roles=frozenset(), name="x") == guard.identify(None, _peer("x"))
    told = guard.identify(None, _peer("x", "worker.chunkmesh", "elsewhere.chunkmesh"))
    assert Identity(roles=frozenset({Role.WORKER}), name="x") == told


def test_two_tenants_are_no_tenant() -> None:
    """Which of them is meant could be read differently behind another door."""
    boss = Identity(roles=_ADMIN, tenant="own")
    assert boss == on_behalf(boss, ())
    assert "blue" == on_behalf(boss, [(TENANT_KEY, "blue")]).tenant
    with pytest.raises(Forbidden, match="one tenant's name"):
        on_behalf(boss, [(TENANT_KEY, "blue"), (TENANT_KEY, "green")])
