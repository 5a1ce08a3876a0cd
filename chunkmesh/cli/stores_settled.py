"""Waits until a mesh has stored what it computed, so that the next request can find it."""

from __future__ import annotations

import time

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import count_stored_pages

_POLL_S = 0.1


def wait_until_settled(hicache: HostPort, *, quiet_s: float = 1.0, timeout_s: float = 30.0) -> int:
    """Return the number of stored pages once it stood still for quiet_s, or after timeout_s.

    Waits for at least one page.

    Raises:
        ChunkMeshError: hicache-server does not answer.
    """
    deadline = time.monotonic() + timeout_s
    count, since = count_stored_pages(hicache), time.monotonic()
    while True:
        now = time.monotonic()
        if now > deadline or (count and now - since >= quiet_s):
            return count
        time.sleep(_POLL_S)
        latest = count_stored_pages(hicache)
        if latest != count:
            count, since = latest, time.monotonic()
