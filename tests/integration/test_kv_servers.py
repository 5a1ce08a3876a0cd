"""Pages spread over independent servers and over a cluster."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from chunkmesh.errors import CacheFault
from chunkmesh.kv_store import KvStore
from chunkmesh.stored_page import page_key
from tests.page_samples import FORM, chain, encoded, layer_data
from tests.valkey import Valkey, running_cluster, running_valkey

DIGESTS = chain(40)
LAYERS = range(4)


@contextlib.contextmanager
def shards(folder: pathlib.Path, num_servers: int) -> Iterator[tuple[Valkey, ...]]:
    """Run servers that know nothing of each other."""
    with contextlib.ExitStack() as stack:
        servers = []
        for index in range(num_servers):
            home = folder / str(index)
            home.mkdir()
            servers.append(stack.enter_context(running_valkey(home)))
        yield tuple(servers)


@pytest.fixture(params=[shards, running_cluster], ids=["shards", "cluster"])
def servers(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[tuple[Valkey, ...]]:
    """Run three servers."""
    with request.param(tmp_path, 3) as running:
        yield running


@pytest.fixture
def store(servers: tuple[Valkey, ...]) -> Iterator[KvStore]:
    """Connect a client to all of them."""
    client = KvStore(*(server.url for server in servers))
    yield client
    client.close()


def keys_of(server: Valkey) -> set[bytes]:
    """Return the keys on a server."""
    with server.client() as client:
        return set(client.keys())


def check_pages(store: KvStore, digests: Sequence[bytes] = DIGESTS) -> None:
    """Read all pages and compare every byte."""
    into = np.zeros((len(digests), len(LAYERS), FORM.layer_bytes), dtype=np.uint8)
    assert ("ok",) * len(digests) == store.read_pages(digests, FORM, 0, into)
    for page, digest in enumerate(digests):
        for layer in LAYERS:
            assert layer_data(digest, layer).tobytes() == into[page, layer].tobytes()


def test_every_server_has_a_share(servers: tuple[Valkey, ...], store: KvStore) -> None:
    """Pages go to one server each, and come back in the order asked for."""
    assert store.write_pages(encoded(DIGESTS, LAYERS)) == (True,) * len(DIGESTS)
    shares = [keys_of(server) for server in servers]
    assert all(shares)
    assert sum(map(len, shares)) == len(DIGESTS)
    assert set.union(*shares) == {page_key(digest) for digest in DIGESTS}
    check_pages(store)


def test_all_servers_are_counted_scanned_and_cleaned(store: KvStore) -> None:
    """The index is rebuilt from all of them."""
    store.write_pages(encoded(DIGESTS, LAYERS))
    info = store.server()
    assert (3, len(DIGESTS)) == (len(info.num_keys), sum(info.num_keys))
    found = [page.digest for batch in store.scan() for page in batch]
    assert sorted(DIGESTS) == sorted(found)
    assert store.unlink(DIGESTS[:30]) == 30
    assert sum(store.server().num_keys) == len(DIGESTS) - 30
    check_pages(store, DIGESTS[30:])


def test_every_server_bears_a_mark_until_it_loses_all(
    servers: tuple[Valkey, ...], store: KvStore
) -> None:
    """The first mark stays; one server that was emptied is seen among full ones."""
    assert (None,) * 3 == store.server().marks
    store.mark(b"first")
    store.mark(b"second")
    assert (b"first",) * 3 == store.server().marks
    assert all(len(keys_of(server)) == 1 for server in servers)
    with servers[1].client() as client:
        client.flushall()
    assert [b"first", b"first", None] == sorted(store.server().marks, key=lambda mark: mark is None)
    store.mark(b"third")
    assert {b"first", b"third"} == set(store.server().marks)


def test_other_values_go_to_the_server_of_their_key(
    servers: tuple[Valkey, ...], store: KvStore
) -> None:
    """What is kept beside pages is found again by every client."""
    keys = [b"cm-test-%d" % index for index in range(20)]
    assert store.run([(b"HSET", key, b"a", key) for key in keys]) == (1,) * 20
    other = KvStore(*(server.url for server in servers))
    assert other.run([(b"HGET", key, b"a") for key in reversed(keys)]) == tuple(reversed(keys))
    other.close()
    assert sum(len(keys_of(server)) for server in servers) == 20


def test_a_server_that_is_away_is_a_fault_until_it_is_back(
    servers: tuple[Valkey, ...], store: KvStore
) -> None:
    """Without one of them hardly any prefix is whole; the others' connections stay usable."""
    store.write_pages(encoded(DIGESTS, LAYERS))
    run_id = store.server().run_id
    servers[1].stop()
    with pytest.raises(CacheFault):
        store.server()
    with pytest.raises(CacheFault):
        store.write_pages(encoded(DIGESTS, LAYERS))
    servers[1].start()
    wait_for_pages(store)
    check_pages(store)
    assert run_id != store.server().run_id


def wait_for_pages(store: KvStore) -> None:
    """Write until it works: a cluster needs a moment to see a member come back."""
    deadline_s = time.monotonic() + 10
    while True:
        try:
            store.write_pages(encoded(DIGESTS, LAYERS))
        except CacheFault:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        else:
            return


def test_a_member_of_a_cluster_knows_the_others(tmp_path: pathlib.Path) -> None:
    """One address is enough; more are for when it is away."""
    with running_cluster(tmp_path, 3) as servers:
        store = KvStore(servers[2].url)
        store.write_pages(encoded(DIGESTS, LAYERS))
        assert all(keys_of(server) for server in servers)
        check_pages(store)
        store.close()


def test_slots_that_move_are_found_at_the_next_call(tmp_path: pathlib.Path) -> None:
    """Resharding a live cluster costs a fault of the cache at most, never a wrong page."""
    with running_cluster(tmp_path, 2) as servers:
        store = KvStore(servers[0].url)
        digest = DIGESTS[0]
        assert store.write_pages(encoded((digest,), LAYERS)) == (True,)
        owner = next(server for server in servers if keys_of(server))
        other = next(server for server in servers if server is not owner)
        with owner.client() as client, other.client() as other_client:
            slot = client.execute_command("CLUSTER", "KEYSLOT", page_key(digest))
            other_id = other_client.execute_command("CLUSTER", "MYID")
            client.delete(page_key(digest))
            for each in (other_client, client):
                each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", other_id)
        with pytest.raises(CacheFault, match="MovedError"):
            store.write_pages(encoded((digest,), LAYERS))
        assert store.write_pages(encoded((digest,), LAYERS)) == (True,)
        assert keys_of(other) == {page_key(digest)}
        check_pages(store, (digest,))
        store.close()


def test_a_cluster_is_not_reached_through_a_socket(tmp_path: pathlib.Path) -> None:
    """A socket says nothing of where the other members are: say what to give instead."""
    with running_cluster(tmp_path, 1) as (server,):
        store = KvStore(server.unix_url)
        with pytest.raises(CacheFault, match="redis://HOST:PORT"):
            store.server()
        store.close()
