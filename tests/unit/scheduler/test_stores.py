"""Stores: which pages, under which keys, for whom."""

from __future__ import annotations

import numpy as np

from chunkmesh.pages import extend_chain
from scheduler.cache_counts import CacheCounts
from scheduler.engine_config import EngineConfig, WritePolicy
from scheduler.page_table import PageTable
from scheduler.pages import PageAllocator
from scheduler.part import Part
from scheduler.request import Request
from scheduler.stores import Stores
from scheduler.tiers import Tiers
from tests.specs import NAMESPACE, make_spec

_OTHER = b"o" * 32


def _stores(
    tiers: Tiers, max_outstanding: int = 4, policy: WritePolicy = "write_through"
) -> Stores:
    """Return stores of two stages."""
    config = EngineConfig(
        page_tokens=16,
        chunked_prefill_tokens=64,
        max_running_requests=8,
        max_queued_requests=8,
        load_timeout_s=1.0,
        max_outstanding_stores=max_outstanding,
        write_policy=policy,
    )
    return Stores(epoch=1, tiers=tiers, page_bytes=(0, 0), config=config, counts=CacheCounts())


def _request(request_id: str, pages: PageAllocator, namespace: bytes = NAMESPACE) -> Request:
    """Return a request of 40 tokens with pages."""
    spec = make_spec(request_id, 40, namespace=namespace)
    return Request(spec=spec, table=PageTable(page_ids=list(pages.allocate(3))))


def _chunk(request: Request, end: int) -> Part:
    """Return the beginning of a prompt."""
    return Part(request=request, start=0, end=end, is_chunk=True, num_samples=0)


def test_keys_are_the_chain_of_the_prompt() -> None:
    """A wrong parent would hang the page into another prompt's prefix."""
    tiers = Tiers(num_pages=8)
    pages = tiers.device
    request = _request("a", pages)
    store = _stores(tiers).start((_chunk(request, 40),))
    assert store is not None
    first, second = extend_chain(NAMESPACE, np.arange(32, dtype=np.uint32), 16)
    keys = [(page.digest, page.parent, page.page_index, page.page_id) for page in store.pages]
    assert keys == [(first, NAMESPACE, 0, 0), (second, first, 1, 1)]


def test_commits_are_told_by_namespace() -> None:
    """Pages of two tenants in one microbatch must not meet in one tree, nor in Redis."""
    tiers = Tiers(num_pages=8)
    pages = tiers.device
    stores = _stores(tiers)
    one, two = _request("a", pages), _request("b", pages, _OTHER)
    order = stores.start((_chunk(one, 40), _chunk(two, 17)))
    assert order is not None
    assert [NAMESPACE, NAMESPACE, _OTHER] == [page.namespace for page in order.pages]
    commits = stores.stored(0, 0, (2, 0, 1))
    told = [(c.stage, c.namespace, [page.page_id for page in c.pages]) for c in commits]
    assert told == [(0, NAMESPACE, [0, 1]), (0, _OTHER, [3])]


def test_pages_are_pinned_until_all_stages_answered() -> None:
    """A stage that still reads a page must not see another request's."""
    tiers = Tiers(num_pages=8)
    pages = tiers.device
    stores = _stores(tiers)
    request = _request("a", pages)
    stores.start((_chunk(request, 40),))
    pages.release(request.table.page_ids)
    assert pages.num_free == 6
    stores.stored(0, 0, (0, 1))
    assert pages.num_free == 6
    stores.stored(1, 0, ())
    assert (pages.num_free, len(stores)) == (8, 0)


def test_nothing_is_stored_when_none_may_be_outstanding() -> None:
    """The cache can be off."""
    tiers = Tiers(num_pages=8)
    pages = tiers.device
    request = _request("a", pages)
    stores = _stores(tiers, max_outstanding=0)
    assert stores.start((_chunk(request, 40),)) is None


def _hold(tiers: Tiers, request: Request) -> None:
    """Let a request's two full pages be found."""
    tiers.device.keep(NAMESPACE, request.leading_digests(2, 16), request.table.page_ids[:2])


def test_what_leaves_the_devices_is_written_back_unless_host_memory_has_it() -> None:
    """Each page is written once, when the last tier that has it needs its room."""
    tiers = Tiers(num_pages=3, num_host_pages=1)
    stores = _stores(tiers, policy="write_back")
    request = _request("a", tiers.device)
    _hold(tiers, request)
    digests = request.leading_digests(2, 16)
    tiers.host.save(NAMESPACE, digests, request.table.page_ids, 0, epoch=1)
    tiers.device.release(request.drop_pages())
    tiers.device.allocate(3)
    (order,) = stores.gone()
    told = (order.in_turn, order.tier, [page.digest for page in order.pages])
    assert told == (True, "device", [digests[1]])
    assert stores.gone() == []


def test_what_is_written_back_is_bounded_and_the_rest_counted() -> None:
    """A Redis that is slow costs hits, and nobody waits for it."""
    tiers = Tiers(num_pages=3)
    stores = _stores(tiers, max_outstanding=0, policy="write_back")
    request = _request("a", tiers.device)
    _hold(tiers, request)
    tiers.device.release(request.drop_pages())
    tiers.device.allocate(3)
    assert stores.gone() == []
    assert stores.counts.unwritten_pages == 2


def test_a_flush_goes_on_as_its_stores_end() -> None:
    """Pages are pinned while they are written; what a stage did not write may be tried again."""
    tiers = Tiers(num_pages=16)
    stores = _stores(tiers, max_outstanding=1, policy="write_back")
    requests = [_request(name, tiers.device, name.encode() * 32) for name in "ab"]
    for request in requests:
        digests = request.leading_digests(2, 16)
        tiers.device.keep(request.spec.namespace, digests, request.table.page_ids[:2])
        tiers.device.release(request.drop_pages())
    stores.flush()
    (order,) = stores.go_on()
    assert len(order.pages) == stores.num_unwritten == 4
    assert (stores.go_on(), tiers.device.num_free) == ([], 12)
    stores.stored(0, 0, (0, 1, 2, 3))
    stores.stored(1, 0, (0, 1, 2))
    assert (stores.num_unwritten, tiers.device.num_free) == (0, 16)
    written = [tiers.is_stored(page.digest) for page in order.pages]
    assert written == [True, True, True, False]


def test_a_page_that_two_prompts_lack_is_written_once() -> None:
    """Both were asked for before a store had room; a page held twice would never be free again."""
    tiers = Tiers(num_pages=16)
    stores = _stores(tiers, max_outstanding=1)
    cached = _request("a", tiers.device)
    _hold(tiers, cached)
    digests = cached.leading_digests(2, 16)
    tiers.device.release(cached.drop_pages())
    running = _request("b", tiers.device, _OTHER)
    assert stores.start((_chunk(running, 40),)) is not None
    stores.restore(digests)
    stores.restore(digests[:1])
    assert stores.num_unwritten == 4
    stores.stored(0, 0, (0, 1))
    stores.stored(1, 0, (0, 1))
    (order,) = stores.go_on()
    assert [page.digest for page in order.pages] == list(digests)
    assert tiers.device.num_free == 11
    tiers.check_integrity()


def test_what_is_written_back_is_withdrawn_when_its_prompt_is_distrusted() -> None:
    """A page that is on its way to Redis has left the devices, so that no tier marks it."""
    tiers = Tiers(num_pages=3)
    stores = _stores(tiers, policy="write_back")
    request = _request("a", tiers.device)
    _hold(tiers, request)
    digests = request.leading_digests(2, 16)
    tiers.device.release(request.drop_pages())
    again = _request("b", tiers.device)
    (order,) = stores.gone()
    assert stores.distrust(again) == digests
    assert stores.stored(0, order.store_id, (0, 1)) == []


def test_what_hicache_does_not_have_is_not_believed_to_be_stored() -> None:
    """Requests that ended early leave marks behind; their pages would never be written again.

    Those that are being written now are not there yet, and are on their way.
    """
    tiers = Tiers(num_pages=8)
    stores = _stores(tiers, policy="write_through_selective")
    spec = make_spec("a", 70)
    digests = spec.digests
    tiers.mark_stored(digests[1:])
    first = Request(
        spec=make_spec("b", 40), table=PageTable(page_ids=list(tiers.device.allocate(3)))
    )
    tiers.device.keep(NAMESPACE, first.leading_digests(2, 16), first.table.page_ids[:2])
    stores.restore(digests[1:2])
    assert len(stores.go_on()) == 1
    request = Request(spec=spec, was_matched=True, num_pages_stored=1)
    stores.begin(request)
    stored = [tiers.is_stored(digest) for digest in digests]
    assert (stored, request.num_pages_stored) == ([True, True, False, False], 0)


def test_what_two_outputs_have_found_is_written_once() -> None:
    """Redis was cleared, the devices have the beginning of both prompts, both are in a microbatch.

    A page pinned twice by one store would be counted as free twice.
    """
    tiers = Tiers(num_pages=8)
    stores = _stores(tiers)
    first = _request("a", tiers.device)
    _hold(tiers, first)
    second = Request(spec=make_spec("b", 40), table=PageTable(page_ids=first.table.page_ids[:2]))
    tiers.device.take_cached(second.table.page_ids)
    second.table.page_ids += tiers.device.allocate(1)
    order = stores.start((_chunk(first, 40), _chunk(second, 40)))
    assert order is not None
    assert [page.page_id for page in order.pages] == first.table.page_ids[:2]
    third = _request("c", tiers.device)
    assert stores.start((_chunk(third, 40),)) is None
    for request in (first, second, third):
        tiers.device.release(request.drop_pages())
    for stage in (0, 1):
        stores.stored(stage, order.store_id, (0, 1))
    assert tiers.device.num_free == 8
    tiers.check_integrity()


def test_what_was_under_way_when_the_route_was_lost_is_not_stored() -> None:
    """Nobody will say that it is; the workers still have it, and it is written when it is due."""
    tiers = Tiers(num_pages=8)
    stores = _stores(tiers, policy="write_through_selective")
    request = _request("a", tiers.device)
    _hold(tiers, request)
    digests = request.leading_digests(2, 16)
    stores.restore(digests)
    assert len(stores.go_on()) == 1
    assert all(map(tiers.is_stored, digests))
    stores.abandon()
    assert not any(map(tiers.is_stored, digests))
