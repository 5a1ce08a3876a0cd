"""Changes many pages by hand, some at a time, so that requests are answered between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from hicache.cache import PrefixCache
from hicache.selection import Listed, Selection
from hicache.slices import found_in_slices, parts
from hicache.tallies import Amount, Removal


async def change_in_parts(
    cache: PrefixCache, selection: Selection, change: Callable[[Selection], Amount | Removal]
) -> Amount:
    """Do something with the pages that are meant, children before parents; return how many.

    Raises:
        NotFound, InvalidRequest: as selecting does; nothing is changed.
    """
    chosen = cache.selecting(selection, now_s=time.monotonic())
    digests = [digest async for digest in found_in_slices(chosen)]
    num_pages = num_bytes = 0
    for part in parts(digests):
        amount = change(Listed(digests=part))
        num_pages += amount.num_pages
        num_bytes += amount.num_bytes
        await asyncio.sleep(0)
    return Amount(num_pages=num_pages, num_bytes=num_bytes)


async def over_quota(cache: PrefixCache, namespace: bytes, max_bytes: int) -> Amount:
    """Count what a quota, 0 for none, would evict."""
    sizes = found_in_slices(cache.over_quota(namespace, max_bytes, now_s=time.monotonic()))
    going = [num_bytes async for num_bytes in sizes]
    return Amount(num_pages=len(going), num_bytes=sum(going))


async def end_waiting_pins(cache: PrefixCache) -> None:
    """End the pins whose pages are not there."""
    for part in parts(cache.all_pins.all()):
        cache.all_pins.end_waiting([digest for digest, _ in part])
        await asyncio.sleep(0)
