"""Hashes, logs and raw fields beside pages, on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import MAX_READ_BYTES, KvAdmin
from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import LAYER_HEADER_BYTES
from chunkmesh.stored_page import page_key
from tests.page_samples import FORM, chain, encoded
from tests.valkey import Valkey

(DIGEST,) = chain(1)


@pytest.fixture
def store(valkey: Valkey) -> Iterator[KvStore]:
    """Connect to it."""
    store = KvStore(valkey.url)
    yield store
    store.close()


def test_hashes(store: KvStore, valkey: Valkey) -> None:
    """More fields than a command takes, bytes that are no text, and an end."""
    admin = KvAdmin(store)
    assert {} == admin.read_hash(b"cm-pins")
    fields = {bytes([index % 256, index // 256]): b"%d" % index for index in range(2500)}
    admin.write_hash(b"cm-pins", fields)
    assert fields == admin.read_hash(b"cm-pins")
    admin.drop_fields(b"cm-pins", list(fields)[:2400])
    assert dict(list(fields.items())[2400:]) == admin.read_hash(b"cm-pins")
    admin.write_hash(b"cm-pins", {})
    admin.drop_fields(b"cm-pins", [])
    with valkey.client() as client:
        assert -1 == client.ttl("cm-pins")
        admin.write_hash(b"cm-ns:a", {b"model": b"m"}, ttl_s=60)
        assert 0 < client.ttl("cm-ns:a") <= 60
        client.set("text", b"no hash")
    assert {} == admin.read_hash(b"text")
    with pytest.raises(CacheFault, match="text is no hash"):
        admin.write_hash(b"text", {b"a": b"1"})


def test_a_log_is_capped_and_newest_first(store: KvStore, valkey: Valkey) -> None:
    """Its times are those of the server, so that all replicas tell the same."""
    admin = KvAdmin(store)
    assert [] == admin.newest(b"cm-audit", 10)
    before_ms = time.time_ns() // 1_000_000
    for index in range(300):
        admin.append(b"cm-audit", [{b"n": b"%d" % index}], max_entries=100)
    entries = admin.newest(b"cm-audit", 3)
    assert [{b"n": b"299"}, {b"n": b"298"}, {b"n": b"297"}] == [fields for _, fields in entries]
    assert all(abs(unix_ms - before_ms) < 60_000 for unix_ms, _ in entries)
    with valkey.client() as client:
        assert 100 <= client.xlen("cm-audit") <= 200
        client.set("text", b"no log")
    assert [] == admin.newest(b"text", 10)
    with pytest.raises(CacheFault, match="text is no stream"):
        admin.append(b"text", [{b"a": b"1"}], max_entries=9)


def test_raw_fields_of_a_page(store: KvStore, valkey: Valkey) -> None:
    """A value of another length is not read: it could be half a gigabyte."""
    (page,) = encoded((DIGEST,), range(3))
    store.write_pages([page])
    with valkey.client() as client:
        client.hset(page_key(DIGEST), "1", b"too long" * 1000)
    admin = KvAdmin(store)
    assert page.record == admin.read_record(DIGEST)
    (group,) = admin.read_layers(DIGEST, [0, 1, 2, 3], layer_bytes=FORM.layer_bytes)
    values = dict(page.layers)
    assert [(0, bytes(values[0])), (1, b""), (2, bytes(values[2])), (3, None)] == group
    (unknown,) = chain(1, name="unknown")
    assert admin.read_record(unknown) is None
    groups = list(admin.read_layers(unknown, [0, 1], layer_bytes=MAX_READ_BYTES))
    assert [[(0, None)], [(1, None)]] == groups


def test_no_read_is_larger_than_a_message(store: KvStore, valkey: Valkey) -> None:
    """Values that fill a command go one a read; what fits goes together."""
    layer_bytes = MAX_READ_BYTES // 2 - LAYER_HEADER_BYTES
    value = bytes(layer_bytes + LAYER_HEADER_BYTES)
    with valkey.client() as client:
        for layer in range(3):
            client.hset(page_key(DIGEST), str(layer), value)
    groups = list(KvAdmin(store).read_layers(DIGEST, range(3), layer_bytes=layer_bytes))
    assert [[0, 1], [2]] == [[layer for layer, _ in group] for group in groups]


def test_a_server_that_is_away_is_a_fault(store: KvStore, valkey: Valkey) -> None:
    """As with pages; it works again once the server does."""
    admin = KvAdmin(store)
    admin.write_hash(b"cm-pins", {b"a": b"1"})
    valkey.stop()
    with pytest.raises(CacheFault):
        admin.read_hash(b"cm-pins")
    valkey.start()
    assert {} == admin.read_hash(b"cm-pins")
