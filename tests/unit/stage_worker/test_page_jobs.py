"""Bounds of page I/O: a long prompt on a large machine must come through whole."""

from __future__ import annotations

import pytest

from stage_worker.host_pages import HostPages
from stage_worker.page_jobs import (
    LEAST_STAGING_BYTES,
    LEAST_STORE_BYTES,
    PageIOLimits,
    growing_groups,
)

GB = 10**9


@pytest.mark.parametrize(
    ("kv_bytes", "free_bytes", "room_bytes"),
    [(20 * GB, 120 * GB, 20 * GB), (80 * GB, 100 * GB, 25 * GB)],
)
def test_a_prompt_as_long_as_the_pool_has_room(
    kv_bytes: int, free_bytes: int, room_bytes: int
) -> None:
    """A chunk on a GPU fills more than a small bound: its pages would never be stored."""
    limits = PageIOLimits.of_pool(kv_bytes, HostPages(0), free_bytes)
    assert (limits.staging_bytes, limits.store_bytes) == (room_bytes, room_bytes)


@pytest.mark.parametrize("free_bytes", [None, 1 << 30])
def test_a_small_machine_has_the_least_room(free_bytes: int | None) -> None:
    """What is not there, or not known, must not be taken."""
    limits = PageIOLimits.of_pool(20 * GB, HostPages(0), free_bytes)
    least = (LEAST_STAGING_BYTES, LEAST_STORE_BYTES)
    assert least == (limits.staging_bytes, limits.store_bytes)


def test_groups_grow_and_end_with_slabs() -> None:
    """A page's memory is one piece, and a load that ends early has its front."""
    mib = 1 << 20
    groups = list(growing_groups(40, mib, slab_pages=10))
    assert [(group.start, group.stop) for group in groups[:5]] == [
        *((0, 1), (1, 3), (3, 7), (7, 10), (10, 20))
    ]
    assert groups[-1].stop == 40
