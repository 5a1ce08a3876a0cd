"""Brings the index in line with Redis by a scan in the background, while requests are served."""

from __future__ import annotations

import time

import structlog

from hicache.cache import PrefixCache
from hicache.families import Families
from hicache.store_thread import StoreThread

_log = structlog.get_logger(__name__)


async def rebuild(cache: PrefixCache, store: StoreThread) -> None:
    """Record every page found, then forget those that were known before and were not found.

    A page without the pages above it is of no use to anybody and is not recorded; it will expire.
    Ends early when the cache is told to forget everything meanwhile.

    Raises:
        CacheFault: Redis stopped answering; what was recorded so far stays.
    """
    generation = cache.generation
    families = Families()
    missing = set(cache.known())
    num_found = num_refused = 0
    async for batch in store.scan():
        if cache.generation != generation:
            return
        num_refused += cache.adopt(families.placed(batch), now_s=time.monotonic())
        num_found += len(batch)
        missing.difference_update(page.digest for page in batch)
    if cache.generation != generation:
        return
    num_dropped = cache.invalidate(missing)
    _log.info(
        "index rebuilt",
        num_found=num_found,
        num_refused=num_refused,
        num_without_parent=families.num_waiting,
        num_dropped=num_dropped,
        num_pages=cache.num_pages,
        num_bytes=cache.num_bytes,
    )
