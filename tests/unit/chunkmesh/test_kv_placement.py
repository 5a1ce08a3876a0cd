"""Keys spread over servers: evenly, in the same way for everybody, with little to move."""

from __future__ import annotations

from collections import Counter

import pytest

from chunkmesh.errors import CacheFault
from chunkmesh.kv_placement import NUM_SLOTS, Placement, Rendezvous, Slots, key_on_each
from chunkmesh.stored_page import page_key
from tests.page_samples import chain

KEYS = [page_key(digest) for digest in chain(4000)]


def test_servers_of_a_list_get_even_shares() -> None:
    """One that is twice as full as another halves what the cache holds."""
    counts = Counter(map(Rendezvous(4).server, KEYS))
    assert {0, 1, 2, 3} == set(counts)
    assert all(900 < count < 1100 for count in counts.values())


def test_a_server_more_moves_only_its_share() -> None:
    """Otherwise a cache that grows would be empty for a while."""
    before, after = Rendezvous(4), Rendezvous(5)
    moved = [key for key in KEYS if before.server(key) != after.server(key)]
    assert all(after.server(key) == 4 for key in moved)
    assert 700 < len(moved) < 900


def test_slots_are_those_of_the_server_that_has_the_range() -> None:
    """The ranges of CLUSTER SLOTS come in any order and include both ends."""
    placement = Slots([(8192, NUM_SLOTS - 1, 1), (0, 8191, 0)])
    # CRC16 of 123456789 is 0x31C3 by the cluster's specification, which is slot 12739
    assert placement.server(b"123456789") == 1
    assert Slots([(12739, 12739, 7)]).server(b"123456789") == 7


def test_a_slot_that_nobody_has_is_a_fault_of_the_cache() -> None:
    """A cluster that lost a server serves the rest; we take it as a miss."""
    for ranges in ([(12740, NUM_SLOTS - 1, 0)], [(0, 12738, 0)], []):
        with pytest.raises(CacheFault, match="slot 12739"):
            Slots(ranges).server(b"123456789")


@pytest.mark.parametrize(
    ("placement", "num_servers"),
    [
        (Rendezvous(1), 1),
        (Rendezvous(7), 7),
        (Slots([(0, 40, 1), (41, NUM_SLOTS - 1, 0)]), 2),
    ],
)
def test_every_server_gets_a_key_of_its_own(placement: Placement, num_servers: int) -> None:
    """Also one that holds hardly anything; everybody finds the same keys."""
    keys = key_on_each(placement, num_servers, b"cm-mark:")
    assert list(range(num_servers)) == [placement.server(key) for key in keys]
    assert keys == key_on_each(placement, num_servers, b"cm-mark:")
