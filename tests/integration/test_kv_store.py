"""Pages in a real server: sound, missing, damaged, and the server's own troubles."""

from __future__ import annotations

import dataclasses
import pathlib
import socket
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from chunkmesh.errors import CacheFault, ConfigError
from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import PageFormat, PageRecord, encode_page
from chunkmesh.stored_page import page_key
from tests.page_samples import FORM, chain, encoded, layer_data
from tests.valkey import Valkey, running_valkey

DIGESTS = chain(3)


@pytest.fixture
def store(valkey: Valkey) -> Iterator[KvStore]:
    """Connect a client."""
    client = KvStore(valkey.url)
    yield client
    client.close()


def staging(num_pages: int, num_layers: int, form: PageFormat = FORM) -> npt.NDArray[np.uint8]:
    """Return room for pages."""
    return np.zeros((num_pages, num_layers, form.layer_bytes), dtype=np.uint8)


def test_pages_of_a_two_way_split_are_read_by_a_three_way_split(store: KvStore) -> None:
    """Layers are fields, so any split reads what any other wrote."""
    assert store.write_pages(encoded(DIGESTS, range(2))) == (True, True, True)
    assert store.read_pages(DIGESTS, FORM, 1, staging(3, 2)) == ("missing",) * 3
    assert store.write_pages(encoded(DIGESTS, range(2, 4))) == (True, True, True)
    for first, last in ((0, 1), (1, 3), (3, 4)):
        into = staging(3, last - first)
        assert store.read_pages(DIGESTS, FORM, first, into) == ("ok",) * 3
        for page, digest in enumerate(DIGESTS):
            for layer in range(first, last):
                expected = layer_data(digest, layer)
                assert expected.tobytes() == into[page, layer - first].tobytes()


def test_a_unix_socket_works_as_well(valkey: Valkey) -> None:
    """The usual place of a server on the same host."""
    store = KvStore(valkey.unix_url)
    store.write_pages(encoded(DIGESTS, range(4)))
    assert store.read_pages(DIGESTS, FORM, 0, staging(3, 4)) == ("ok",) * 3
    store.close()


def test_pages_expire(valkey: Valkey) -> None:
    """Pages that no index knows any more must not stay for ever."""
    store = KvStore(valkey.url, page_ttl_s=100)
    store.write_pages(encoded(DIGESTS[:1], range(4)))
    with valkey.client() as client:
        assert 0 < client.ttl(page_key(DIGESTS[0])) <= 100
    store.close()


def test_values_over_the_command_limit_are_split(
    store: KvStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands and batches are bounded on both ways."""
    form = dataclasses.replace(FORM, layer_bytes=100_000)
    monkeypatch.setattr("chunkmesh.kv_pages.MAX_COMMAND_BYTES", 250_000)
    monkeypatch.setattr("chunkmesh.kv_pages.MAX_BATCH_BYTES", 500_000)
    assert store.write_pages(encoded(DIGESTS, range(4), form)) == (True, True, True)
    into = staging(3, 4, form)
    assert store.read_pages(DIGESTS, form, 0, into) == ("ok",) * 3
    assert into[2, 3].tobytes() == layer_data(DIGESTS[2], 3, form).tobytes()


def _flip(valkey: Valkey, field: str) -> None:
    with valkey.client() as client:
        value = bytearray(client.hget(page_key(DIGESTS[1]), field) or b"")
        value[-1] ^= 1
        client.hset(page_key(DIGESTS[1]), field, bytes(value))


def _truncate(valkey: Valkey, field: str) -> None:
    with valkey.client() as client:
        value = client.hget(page_key(DIGESTS[1]), field) or b""
        client.hset(page_key(DIGESTS[1]), field, value[:-1])


def _swap(valkey: Valkey, field: str) -> None:
    with valkey.client() as client:
        value = client.hget(page_key(DIGESTS[2]), field) or b""
        client.hset(page_key(DIGESTS[1]), field, value)


@pytest.mark.parametrize("field", ["m", "2"])
@pytest.mark.parametrize("damage", [_flip, _truncate, _swap])
def test_damage_is_seen(valkey: Valkey, store: KvStore, field: str, damage: object) -> None:
    """Everything read back is hostile; the pages around it stay good."""
    assert callable(damage)
    store.write_pages(encoded(DIGESTS, range(4)))
    damage(valkey, field)
    assert store.read_pages(DIGESTS, FORM, 2, staging(3, 2)) == ("ok", "damaged", "ok")


@pytest.mark.parametrize("field", ["m", "2"])
def test_a_missing_field_is_a_missing_page(valkey: Valkey, store: KvStore, field: str) -> None:
    """O18 (b): only one stage's part is gone."""
    store.write_pages(encoded(DIGESTS, range(4)))
    with valkey.client() as client:
        client.hdel(page_key(DIGESTS[1]), field)
    assert store.read_pages(DIGESTS, FORM, 2, staging(3, 2)) == ("ok", "missing", "ok")


def test_a_key_of_another_type_is_a_missing_page(valkey: Valkey, store: KvStore) -> None:
    """Somebody else's key must not end the load of the pages around it."""
    store.write_pages(encoded(DIGESTS, range(4)))
    with valkey.client() as client:
        client.set(page_key(DIGESTS[1]), b"text")
    assert store.read_pages(DIGESTS, FORM, 0, staging(3, 4)) == ("ok", "missing", "ok")
    assert store.write_pages(encoded(DIGESTS, range(4))) == (True, False, True)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"page_tokens": 32},
        {"model_layers": 8},
    ],
)
def test_pages_of_another_format_are_refused(store: KvStore, change: dict[str, object]) -> None:
    """O17: the record must say what the reader is, not only the key."""
    store.write_pages(encoded(DIGESTS, range(4)))
    form = dataclasses.replace(FORM, **change)  # type: ignore[arg-type]
    assert store.read_pages(DIGESTS, form, 0, staging(3, 4)) == ("damaged",) * 3


def test_pages_of_any_salt_are_read_by_their_digests(store: KvStore) -> None:
    """O17: a digest is of one salt only, so that a reader need not know which."""
    (digest,) = chain(1, name="of a salt")
    record = PageRecord(format=FORM, namespace=bytes(32), parent=bytes(32), page_index=0)
    layers = ((layer, layer_data(digest, layer)) for layer in range(4))
    store.write_pages([encode_page(digest, record, layers)])
    assert store.read_pages((digest,), FORM, 0, staging(1, 4)) == ("ok",)
    ((found,),) = store.scan()
    assert found.record == record


def test_scan_finds_pages_with_their_layers(valkey: Valkey, store: KvStore) -> None:
    """The index is rebuilt from nothing but this."""
    store.write_pages(encoded(DIGESTS[:2], range(1, 3)))
    with valkey.client() as client:
        client.set("cm:other", b"x")
        client.set("unrelated", b"x")
        client.set(page_key(DIGESTS[2]), b"x")
    found = {page.digest: page for batch in store.scan() for page in batch}
    assert set(DIGESTS) == set(found)
    assert found[DIGESTS[2]].record is None
    for digest in DIGESTS[:2]:
        coverage = found[digest].coverage
        assert coverage is not None
        assert coverage.layers == 0b0110
        assert coverage.layer_bytes == FORM.layer_bytes


def test_unlink_counts_what_was_there(store: KvStore) -> None:
    """Admins are told what was really deleted."""
    store.write_pages(encoded(DIGESTS, range(4)))
    assert store.unlink((*DIGESTS[:2], chain(1, name="other")[0])) == 2
    assert store.read_pages(DIGESTS, FORM, 0, staging(3, 4)) == ("missing", "missing", "ok")


def test_the_server_says_who_it_is(store: KvStore) -> None:
    """A flush and a restart are told from these."""
    info = store.server()
    assert info.name == "valkey"
    assert info.version == "7.2.4"
    assert info.run_id
    assert info.num_keys == (0,)


def test_a_client_survives_a_restart(valkey: Valkey, store: KvStore) -> None:
    """O20 (c): down is a fault at once, up again needs nobody."""
    store.write_pages(encoded(DIGESTS, range(4)))
    valkey.stop()
    for _ in range(2):
        with pytest.raises(CacheFault):
            store.read_pages(DIGESTS, FORM, 0, staging(3, 4))
    valkey.start()
    assert store.read_pages(DIGESTS, FORM, 0, staging(3, 4)) == ("missing",) * 3
    assert store.write_pages(encoded(DIGESTS, range(4))) == (True, True, True)


def test_a_restart_while_idle_costs_nothing(valkey: Valkey, store: KvStore) -> None:
    """Each I/O thread has a connection; not every one of them may fail once after a restart."""
    store.write_pages(encoded(DIGESTS, range(4)))
    valkey.stop()
    valkey.start()
    assert store.write_pages(encoded(DIGESTS, range(4))) == (True, True, True)


def test_a_full_server_refuses_pages_one_by_one(tmp_path: pathlib.Path) -> None:
    """O20 (a): a refused write is a page not stored, nothing else."""
    form = dataclasses.replace(FORM, layer_bytes=400_000)
    with running_valkey(tmp_path, max_bytes=6 << 20) as full:
        store = KvStore(full.url)
        digests = chain(6)
        stored = [store.write_pages(encoded((digest,), range(4), form))[0] for digest in digests]
        assert stored[0]
        assert not stored[-1]
        reads = store.read_pages(digests, form, 0, staging(6, 4, form))
        assert [read == "ok" for read in reads] == stored
        store.close()


def test_a_late_reply_is_never_read_as_the_next_one(valkey: Valkey) -> None:
    """O19: the connection of a timed-out command is dropped with whatever comes on it."""
    digest_a, digest_b = chain(2)
    store = KvStore(valkey.url, timeout_s=0.7)
    store.write_pages(encoded((digest_a, digest_b), range(4)))
    for _ in range(3):
        with valkey.stopped(), pytest.raises(CacheFault):
            store.read_pages((digest_a,), FORM, 0, staging(1, 4))
        into = staging(1, 4)
        assert store.read_pages((digest_b,), FORM, 0, into) == ("ok",)
        assert into[0, 0].tobytes() == layer_data(digest_b, 0).tobytes()
    store.close()


def test_an_old_server_is_refused() -> None:
    """Commands that it lacks would fail one by one, and later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_play_redis_5, args=(listener,))
        thread.start()
        store = KvStore(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(CacheFault, match=r"version 5[.]0[.]7 is older than 6[.]2"):
            store.server()
        store.close()
        thread.join(timeout=5)


def _play_redis_5(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            for _ in range(data.count(b"SETINFO")):
                connection.sendall(b"-ERR unknown\r\n")
            if b"INFO\r\n$6" in data:
                connection.sendall(b"$21\r\nredis_version:5.0.7\r\n\r\n")


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1:port"])
def test_a_wrong_url_is_named(url: str) -> None:
    """The flag at fault stands in the error."""
    with pytest.raises(ConfigError, match=f"--redis-url {url}"):
        KvStore(url)
