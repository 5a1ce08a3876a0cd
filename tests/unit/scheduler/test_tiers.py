"""Tiers: what devices and host memory hold together, what goes, and what Redis is known to have."""

from __future__ import annotations

import pytest

from scheduler.cache_counts import CacheCounts
from scheduler.host_pages import HostPages
from scheduler.tiers import Tiers
from tests.page_samples import NAMESPACE, chain

PROMPT = chain(3)
OTHER = chain(3, name="other")


def fill(tiers: Tiers, digests: tuple[bytes, ...], *, in_host: bool = False) -> tuple[int, ...]:
    """Let a prompt be computed and end; return its device pages."""
    page_ids = tiers.device.allocate(len(digests))
    tiers.device.keep(NAMESPACE, digests, page_ids)
    if in_host:
        held, _ = tiers.host.save(NAMESPACE, digests, page_ids, 0, epoch=1)
        tiers.host.release(held)
    tiers.device.release(page_ids)
    return page_ids


def gone(tiers: Tiers, counts: CacheCounts | None = None) -> tuple[list[bytes], list[bytes]]:
    """Return what neither tier has any more, from the devices and from host memory."""
    device, host = tiers.take_gone(counts or CacheCounts())
    return [page.digest for page in device], [page.digest for page in host]


def test_what_another_tier_has_is_not_gone() -> None:
    """Evicting a page from the devices costs nothing while host memory has it."""
    tiers = Tiers(num_pages=3, num_host_pages=3)
    fill(tiers, PROMPT, in_host=True)
    tiers.mark_stored(PROMPT[:1])
    fill(tiers, OTHER)
    assert gone(tiers) == ([], [])
    assert [tiers.is_stored(digest) for digest in PROMPT] == [True, False, False]


def test_what_both_tiers_have_lost_is_gone_once_in_its_order() -> None:
    """It is written from the devices, and its mark ends: it may be computed again."""
    tiers = Tiers(num_pages=3, num_host_pages=3)
    fill(tiers, PROMPT, in_host=True)
    tiers.mark_stored(PROMPT[:1])
    fill(tiers, OTHER, in_host=True)
    assert gone(tiers) == (list(PROMPT[1:]), [])
    assert gone(tiers) == ([], [])
    assert not any(map(tiers.is_stored, PROMPT))


def test_what_host_memory_alone_had_is_gone_from_there() -> None:
    """The devices evicted it long ago."""
    tiers = Tiers(num_pages=3, num_host_pages=3)
    fill(tiers, PROMPT, in_host=True)
    fill(tiers, OTHER)
    assert gone(tiers) == ([], [])
    fill(tiers, chain(3, name="third"), in_host=True)
    assert gone(tiers) == (list(OTHER), list(PROMPT))


def test_each_loss_is_counted_once() -> None:
    """Evictions of both tiers, and pages that found no room in host memory."""
    tiers, counts = Tiers(num_pages=5, num_host_pages=2), CacheCounts()
    page_ids = tiers.device.allocate(3)
    held, order = tiers.host.save(NAMESPACE, PROMPT, page_ids, 0, epoch=1)
    assert order is not None
    assert (held, order.epoch) == ([0, 1], 1)
    assert (order.digests, order.page_ids) == (PROMPT[:2], page_ids[:2])
    tiers.host.release(held)
    tiers.device.release(page_ids)
    fill(tiers, OTHER[:2], in_host=True)
    fill(tiers, chain(5, name="third"))
    for _ in range(2):
        tiers.take_gone(counts)
        told = counts.evicted_pages, counts.host_evicted_pages, counts.host_dropped_pages
        assert told == (2, 2, 1)


def test_a_flush_forgets_both_and_what_was_known_of_redis() -> None:
    """Redis may have been cleared with it, so that marks would keep pages from being stored."""
    tiers = Tiers(num_pages=6, num_host_pages=3)
    fill(tiers, PROMPT, in_host=True)
    tiers.mark_stored(PROMPT)
    assert tiers.forget() == 3
    assert (tiers.host.count(PROMPT, 3), tiers.device.cached.count(PROMPT, 3)) == (0, 0)
    assert not any(map(tiers.is_stored, PROMPT))
    fill(tiers, chain(6, name="third"))
    assert gone(tiers) == ([], [])


def test_distrust_takes_a_prompt_out_of_both() -> None:
    """What the model failed on is nobody's prefix, wherever it lies."""
    tiers = Tiers(num_pages=6, num_host_pages=6)
    page_ids = fill(tiers, PROMPT, in_host=True)
    fill(tiers, OTHER, in_host=True)
    tiers.mark_stored([*PROMPT, *OTHER])
    tiers.distrust(page_ids[1:], PROMPT[1:])
    assert (tiers.host.count(PROMPT, 3), tiers.device.cached.count(PROMPT, 3)) == (1, 1)
    assert (tiers.host.count(OTHER, 3), tiers.device.cached.count(OTHER, 3)) == (3, 3)
    assert [tiers.is_stored(digest) for digest in (*PROMPT, *OTHER)] == [
        True,
        *2 * [False],
        *3 * [True],
    ]


@pytest.mark.parametrize("tier", ["device", "host"])
def test_a_new_epoch_begins_with_all_pages_and_no_holds(tier: str) -> None:
    """Requests of the old one will not give theirs back."""
    tiers = Tiers(num_pages=3, num_host_pages=3)
    fill(tiers, PROMPT, in_host=True)
    held = tiers.hold("device" if tier == "device" else "host", PROMPT)
    assert [page.digest for page in held] == list(PROMPT)
    assert (tiers.device.num_free, tiers.host.num_held) == ((0, 0) if tier == "device" else (3, 3))
    tiers.drop_holds()
    assert (tiers.device.num_free, tiers.host.num_held) == (3, 0)
    tiers.check_integrity()


def test_a_prompt_longer_than_host_memory_keeps_its_beginning() -> None:
    """It does not evict its own first pages, and what is behind them is dropped."""
    host = HostPages(2)
    held, order = host.save(NAMESPACE, PROMPT[:1], (7,), 0, epoch=1)
    assert (held, order is not None) == ([0], True)
    more, order = host.save(NAMESPACE, PROMPT, (7, 8, 9), 1, epoch=1)
    assert order is not None
    assert (more, order.digests, order.page_ids) == ([1], PROMPT[1:2], (8,))
    assert host.save(NAMESPACE, PROMPT, (7, 8, 9), 2, epoch=1) == ([], None)
    assert (host.num_dropped, host.count(PROMPT, 3), host.num_held) == (2, 2, 2)
