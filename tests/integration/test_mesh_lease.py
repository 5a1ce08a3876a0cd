"""The keys of a mesh in a real Valkey: who gets them, and what others may have done to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkmesh.errors import CacheFault
from chunkmesh.kv_store import KvStore
from scheduler.leadership import (
    TTL_S,
    Exchange,
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
from tests.valkey import Valkey, running_valkey

LEASE = "cm-leader:{m}"


class Hand:
    """One scheduler's hand on the keys."""

    def __init__(self, store: KvStore, name: str, mesh: str = "m") -> None:
        self.me = Holder(name=name, term=0, users="a:1", workers="a:2")
        self._store = store
        self._lease = MeshLease(mesh, self.me)

    def does(self, exchange: Exchange) -> LeaseSeen:
        """Do what concerns the lease."""
        seen = self._lease.exchange(self._store, exchange, 7.0)
        assert isinstance(seen, LeaseSeen)
        assert 7.0 == seen.asked_s
        return seen

    def takes_term(self, above: int = 0) -> int:
        """Take a term."""
        taken = self._lease.exchange(self._store, TakeTerm(above=above), 7.0)
        assert isinstance(taken, TermTaken)
        return taken.term


@pytest.fixture
def store(valkey: Valkey) -> Iterator[KvStore]:
    """Yield a client."""
    client = KvStore(valkey.url)
    yield client
    client.close()


@pytest.fixture
def one(store: KvStore) -> Hand:
    """Return a scheduler."""
    return Hand(store, "1" * 16)


@pytest.fixture
def two(store: KvStore) -> Hand:
    """Return another one."""
    return Hand(store, "2" * 16)


def test_one_has_the_lease_and_the_other_sees_who(one: Hand, two: Hand) -> None:
    """With term and addresses, which is what a standby tells everybody."""
    assert one.does(LookAtLease()).holder is None
    held = one.does(SeizeLease(term=5)).holder
    assert Holder(name="1" * 16, term=5, users="a:1", workers="a:2") == held
    assert held == two.does(SeizeLease(term=6)).holder
    seen = two.does(LookAtLease())
    assert (held, False) == (seen.holder, seen.was_released)
    assert 0 < seen.left_s <= TTL_S
    assert held == one.does(RenewLease()).holder


def test_meshes_do_not_know_of_each_other(store: KvStore, one: Hand) -> None:
    """Several may share a Redis."""
    other = Hand(store, "3" * 16, mesh="n")
    one.does(SeizeLease(term=one.takes_term()))
    assert other.does(LookAtLease()).holder is None
    assert 1 == other.takes_term()


def test_a_leader_takes_a_higher_term(one: Hand) -> None:
    """What it has written into the lease changes with it."""
    one.does(SeizeLease(term=1))
    held = one.does(SeizeLease(term=9)).holder
    assert held is not None
    assert 9 == held.term


def test_a_lease_given_back_is_known_as_such(one: Hand, two: Hand) -> None:
    """Until somebody has it again; who has it not gives nothing back."""
    one.does(SeizeLease(term=1))
    two.does(ReleaseLease())
    assert one.does(LookAtLease()).holder is not None
    one.does(ReleaseLease())
    seen = two.does(LookAtLease())
    assert (None, True) == (seen.holder, seen.was_released)
    two.does(SeizeLease(term=2))
    assert not one.does(LookAtLease()).was_released


def test_terms_only_grow(valkey: Valkey, one: Hand, two: Hand) -> None:
    """Also above what Redis has forgotten."""
    assert [1, 2, 3] == [one.takes_term(), two.takes_term(), one.takes_term()]
    with valkey.client() as client:
        client.flushall()
    assert 4 == two.takes_term(above=3)
    assert 5 == one.takes_term(above=3)


@pytest.mark.parametrize("value", ["", "x", "1" * 16 + " 99999999999 a b", "\x00" * 2000])
def test_a_lease_of_nonsense_is_somebody_else_s(valkey: Valkey, one: Hand, value: str) -> None:
    """It ends some time, and harms nobody until then."""
    with valkey.client() as client:
        client.set(LEASE, value, px=60_000)
    holder = one.does(SeizeLease(term=1)).holder
    assert holder is None or holder.name != one.me.name


@pytest.mark.parametrize("value", ["x", "-7", str(2**63 - 1)])
def test_a_counter_of_nonsense_is_a_fault(valkey: Valkey, one: Hand, value: str) -> None:
    """A term that no epoch has room for must not be led under."""
    with valkey.client() as client:
        client.set("cm-term:{m}", value)
    with pytest.raises(CacheFault):
        one.takes_term()


def test_a_full_redis_gives_the_lease_to_nobody(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever asked must not believe to have it."""
    with running_valkey(tmp_path_factory.mktemp("v")) as valkey:
        store = KvStore(valkey.url)
        hand = Hand(store, "1" * 16)
        hand.does(LookAtLease())
        with valkey.client() as client:
            client.config_set("maxmemory", "1")
        with pytest.raises(CacheFault, match="full"):
            hand.does(SeizeLease(term=1))
        store.close()
