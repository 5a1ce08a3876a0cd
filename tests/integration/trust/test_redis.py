"""Redis as docs/security.md has it: users of least privilege, passwords from files, TLS.

The server is a real Valkey whose default user is off; what it denies stands in its ACL LOG.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from chunkmesh.errors import CacheFault, ConfigError
from chunkmesh.kv_login import NO_LOGIN, KvLogin, kv_login
from chunkmesh.kv_store import KvStore
from chunkmesh.stored_page import PageRead
from hicache.admin import consent
from scheduler.leadership import (
    Holder,
    LeaseSeen,
    LookAtLease,
    ReleaseLease,
    RenewLease,
    SeizeLease,
    TakeTerm,
    TermTaken,
)
from scheduler.mesh_lease import MeshLease
from tests.certificates import new_authority
from tests.hicache_admin import (
    LONG,
    LONG_PAGES,
    NUM_PAGES,
    admin,
    byte_tokenizer,
    hicache_over,
    store_pages,
)
from tests.page_samples import FORM, chain, encoded
from tests.tls_proxy import tls_proxy
from tests.valkey import Valkey

_GUIDE = Path(__file__).parents[3] / "docs" / "security.md"
PASSWORD = "a-password-of-tests"  # noqa: S105 - of a server that lives for one test
WORKER, HICACHE = "chunkmesh-worker", "chunkmesh-hicache"
SCHEDULER = "chunkmesh-scheduler"


def _rules() -> dict[str, list[str]]:
    """Return the rules of the guide by user, with the tests' password."""
    lines = re.findall(r"^user (chunkmesh-\w+) (.*)$", _GUIDE.read_text(), re.MULTILINE)
    return {name: rule.replace(">PASSWORD", f">{PASSWORD}").split() for name, rule in lines}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Guarded:
    """A Valkey that knows the guide's users only, and how to look into it."""

    valkey: Valkey
    owner: redis.Redis

    def url(self, user: str = "") -> str:
        """Return where it is, with a user's password if one is named."""
        login = f"{user}:{PASSWORD}@" if user else ""
        return f"redis://{login}127.0.0.1:{self.valkey.port}"

    def denied(self) -> list[str]:
        """Return what it has refused since last asked."""
        entries = self.owner.acl_log()
        self.owner.acl_log_reset()
        return sorted(str(entry["object"]) for entry in entries)


@pytest.fixture
def guarded(valkey: Valkey) -> Iterator[_Guarded]:
    """Give the server its users and turn its default user off."""
    with redis.Redis(unix_socket_path=str(valkey.folder / "valkey.sock"), protocol=2) as owner:
        owner.execute_command("ACL", "SETUSER", "owner", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        owner.auth(PASSWORD, username="owner")
        for name, rule in _rules().items():
            owner.execute_command("ACL", "SETUSER", name, *rule)
        owner.execute_command("ACL", "SETUSER", "default", "off")
        yield _Guarded(valkey=valkey, owner=owner)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _login(tmp_path: Path, user: str, password: str = PASSWORD) -> KvLogin:
    return kv_login(username=user, password_file=_file(tmp_path, f"{password}\n"), ca_certs=None)


@contextlib.contextmanager
def _store(url: str, login: KvLogin = NO_LOGIN) -> Iterator[KvStore]:
    store = KvStore(url, login=login)
    try:
        yield store
    finally:
        store.close()


def _write_and_read(store: KvStore) -> tuple[PageRead, ...]:
    """Do what a worker does."""
    digests = chain(3)
    assert all(store.write_pages(encoded(digests, range(4))))
    into = np.empty((3, 4, FORM.layer_bytes), np.uint8)
    return store.read_pages(digests, FORM, 0, into)


def test_a_worker_needs_no_more_than_its_rule(guarded: _Guarded, tmp_path: Path) -> None:
    """Writing and reading pages, and finding out what the server is, is all that it does."""
    with _store(guarded.url(), _login(tmp_path, WORKER)) as store:
        assert ("ok", "ok", "ok") == _write_and_read(store)
    assert [] == guarded.denied()


def test_a_scheduler_needs_no_more_than_its_rule(guarded: _Guarded, tmp_path: Path) -> None:
    """It takes a term, the lease, lets it live on, looks at it and gives it back."""
    me = Holder(name="0" * 16, term=0, users="host:1", workers="host:2")
    lease = MeshLease("mesh", me)
    with _store(guarded.url(), _login(tmp_path, SCHEDULER)) as store:
        assert TermTaken(term=1) == lease.exchange(store, TakeTerm(above=0), 0.0)
        for step in (SeizeLease(term=1), RenewLease(), LookAtLease(), ReleaseLease()):
            assert isinstance(lease.exchange(store, step, 0.0), LeaseSeen)
    assert [] == guarded.denied()


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("KEYS", "*"),
        ("EVAL", "return 1", "0"),
        ("ACL", "LIST"),
        ("DEL", "cm:x"),
        ("HSET", "cm-pins", "a", "b"),
        ("HSET", "others", "a", "b"),
        ("HGET", "others", "a"),
    ],
)
def test_a_worker_may_do_nothing_else(guarded: _Guarded, command: tuple[str, ...]) -> None:
    """A worker that was taken over can neither empty the server nor read what others keep in it."""
    with (
        redis.Redis(
            port=guarded.valkey.port, username=WORKER, password=PASSWORD, protocol=2
        ) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command(*command)


_COMMANDS = [
    ("ping",),
    ("stats",),
    ("ls",),
    ("tree",),
    ("top",),
    ("lookup", "--text", LONG.decode()),
    ("pin", "--text", LONG.decode(), "--ttl", "1h"),
    ("quota", "set", "mine", "1GB", "--yes"),
    ("quota", "list"),
    ("quota", "unset", "mine", "--yes"),
    ("verify", "--yes"),
    ("unpin", "--text", LONG.decode()),
    ("audit",),
    ("evict", "--text", LONG.decode(), "--yes"),
    ("clear", "--yes"),
]
_OF_PROMPTS = {"lookup", "pin", "unpin", "evict", "verify", "set", "unset", "export"}


async def test_hicache_and_every_command_need_no_more_than_their_rule(
    guarded: _Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index, leases, pins, quotas, audit, files: not one command of Redis is denied."""
    monkeypatch.setattr(consent, "has_terminal", lambda: True)
    guarded.valkey.login = f"{HICACHE}:{PASSWORD}@"
    file = str(tmp_path / "pages")
    commands = [("export", file), *_COMMANDS, ("import", file, "--yes")]
    async with hicache_over(guarded.valkey) as hicache, byte_tokenizer() as scheduler:
        await store_pages(guarded.valkey, hicache, LONG_PAGES)
        for command in commands:
            words = list(command)
            if _OF_PROMPTS & set(words[:2]):
                words += ["--scheduler", scheduler]
            ended = await admin("--hicache", hicache, *words, answer="y\n")
            assert ended.status == 0, (command, ended)
        stats = (await admin("--hicache", hicache, "stats", "--json")).object
    assert ("", len(LONG_PAGES)) == (stats["redis_fault"], stats["num_pages"])
    assert len(LONG_PAGES) < NUM_PAGES
    assert [] == guarded.denied()


def test_a_new_password_needs_no_restart(guarded: _Guarded, tmp_path: Path) -> None:
    """The file is looked at for every connection; the one that stands goes on."""
    login = _login(tmp_path, WORKER)
    with _store(guarded.url(), login) as store:
        _write_and_read(store)
        guarded.owner.execute_command("ACL", "SETUSER", WORKER, "resetpass", ">another-one")  # type: ignore[no-untyped-call]
        _write_and_read(store)
        _file(tmp_path, "another-one")
        guarded.owner.client_kill_filter(user=WORKER)
        with contextlib.suppress(CacheFault):
            _write_and_read(store)
        assert ("ok", "ok", "ok") == _write_and_read(store)


def test_a_wrong_password_is_a_fault_that_does_not_show_it(
    guarded: _Guarded, tmp_path: Path
) -> None:
    """It stands in logs and in hicache-admin ping."""
    with (
        _store(guarded.url(), _login(tmp_path, WORKER, "wrong-password")) as store,
        pytest.raises(CacheFault, match="invalid username-password") as caught,
    ):
        store.server()
    assert "wrong-password" not in str(caught.value)


def test_a_password_is_said_once(tmp_path: Path) -> None:
    """Which of two would count nobody could guess; the text shows none."""
    login = _login(tmp_path, WORKER)
    with pytest.raises(ConfigError, match="--redis-password-file") as caught:
        KvStore(f"redis://me:{PASSWORD}@127.0.0.1:1", login=login)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(("text", "reason"), [("", "empty"), ("\n", "empty")])
def test_a_file_without_a_password_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """Redis would take it for none."""
    with pytest.raises(ConfigError, match=f"--redis-password-file .*{reason}"):
        kv_login(username="", password_file=_file(tmp_path, text), ca_certs=None)


def test_a_name_needs_a_password() -> None:
    """A user's name alone is a slip."""
    with pytest.raises(ConfigError, match="--redis-username me needs --redis-password-file"):
        kv_login(username="me", password_file=None, ca_certs=None)


@pytest.fixture
async def tls_port(valkey: Valkey, tmp_path: Path) -> AsyncIterator[int]:
    """Speak TLS before the server, with a certificate of localhost."""
    authority = new_authority(tmp_path / "redis")
    issued = authority.issue("server", "valkey", ("localhost", "127.0.0.1"))
    async with tls_proxy(valkey.port, issued) as port:
        yield port


async def test_pages_go_over_tls(tls_port: int, tmp_path: Path) -> None:
    """Large values have a way of their own past redis-py, which TLS must take, too."""
    ca_certs = tmp_path / "redis" / "ca.crt"
    login = kv_login(username="", password_file=None, ca_certs=ca_certs)
    with _store(f"rediss://127.0.0.1:{tls_port}", login) as store:
        assert ("ok", "ok", "ok") == await asyncio.to_thread(_write_and_read, store)


@pytest.mark.parametrize(
    ("host", "authority", "reason"),
    [
        ("127.0.0.1", "other", "CERTIFICATE_VERIFY_FAILED"),
        ("127.0.0.1", None, "CERTIFICATE_VERIFY_FAILED"),
        ("127.0.0.2", "redis", "IP address mismatch|Connection refused"),
    ],
)
async def test_a_server_of_another_name_or_authority_is_a_fault(
    tls_port: int, tmp_path: Path, host: str, authority: str | None, reason: str
) -> None:
    """Whoever stands between must not get the password."""
    new_authority(tmp_path / "other")
    ca_certs = None if authority is None else tmp_path / authority / "ca.crt"
    login = kv_login(username="", password_file=None, ca_certs=ca_certs)
    with (
        _store(f"rediss://{host}:{tls_port}", login) as store,
        pytest.raises(CacheFault, match=reason),
    ):
        await asyncio.to_thread(store.server)


def test_missing_authorities_are_refused(tmp_path: Path) -> None:
    """At the start, not at the first connection."""
    with pytest.raises(ConfigError, match=r"--redis-ca-certs .*gone: no such file"):
        kv_login(username="", password_file=None, ca_certs=tmp_path / "gone")
