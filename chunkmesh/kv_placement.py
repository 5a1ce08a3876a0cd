"""Which server holds a key, where pages are spread over several.

Pure; of redis-py only the hash of cluster slots is used.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Protocol

import xxhash
from redis.crc import key_slot

from chunkmesh.errors import CacheFault

NUM_SLOTS = 16384
"""Of a Redis Cluster."""


class Placement(Protocol):
    """Where keys are."""

    def server(self, key: bytes) -> int:
        """Return the index of the server that holds a key."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Rendezvous:
    """Independent servers in a list: each key goes where its hash with the place is highest.

    One server more at the end of the list takes its share of the keys from all others, and moves
    no other key.
    Source: Thaler and Ravishankar, Using name-based mappings to increase hit rates, 1998
    (https://doi.org/10.1109/90.663936).
    """

    num_servers: int

    def server(self, key: bytes) -> int:
        """Return the index in the list."""
        return max(
            range(self.num_servers), key=lambda index: xxhash.xxh3_64_intdigest(key, seed=index)
        )


class Slots:
    """A Redis Cluster: each server holds ranges of slots, and the key's checksum is its slot."""

    def __init__(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Take (first slot, last slot, index of the server) in any order."""
        self._ranges = sorted(ranges)
        self._starts = [first for first, _, _ in self._ranges]

    def server(self, key: bytes) -> int:
        """Return the index of the server.

        Raises:
            CacheFault: nobody serves the key's slot.
        """
        slot = key_slot(key, NUM_SLOTS)
        at = bisect.bisect_right(self._starts, slot) - 1
        if at >= 0:
            _, last, server = self._ranges[at]
            if slot <= last:
                return server
        raise CacheFault(f"Redis: no server of the cluster has slot {slot}")


def key_on_each(placement: Placement, num_servers: int, prefix: bytes) -> tuple[bytes, ...]:
    """Return one key for each server that it holds, named by the prefix and a number.

    Raises:
        CacheFault: a key is on no server.
    """
    keys: dict[int, bytes] = {}
    for serial in itertools.count():
        if len(keys) == num_servers:
            break
        key = b"%s%d" % (prefix, serial)
        keys.setdefault(placement.server(key), key)
    return tuple(keys[index] for index in range(num_servers))
