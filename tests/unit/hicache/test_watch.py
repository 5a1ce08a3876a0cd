"""What watchers hear, also slow ones."""

from __future__ import annotations

import asyncio

from chunkmesh.v1 import hicache_pb2 as pb
from hicache.changes import Change, ChangeKind, Summary
from hicache.watch import MAX_WAITING, ChangeFeed

NAMESPACE = bytes(32)


def evicted(index: int) -> Summary:
    """Return a change that can be told from others."""
    return Change(
        kind=ChangeKind.EVICTED,
        namespace=NAMESPACE,
        digests=(index.to_bytes(32, "little"),),
        num_bytes=index,
    ).summary


async def test_changes_come_in_order_to_everybody() -> None:
    """Each watcher has its own queue; who comes later hears what happens later."""
    feed = ChangeFeed()
    with feed.subscribed() as first:
        feed.changed(evicted(1))
        with feed.subscribed() as second:
            feed.redis_down("why")
            heard = [await first.next(), await first.next(), await second.next()]
    assert [pb.CHANGE_KIND_EVICTED, pb.CHANGE_KIND_REDIS_DOWN, pb.CHANGE_KIND_REDIS_DOWN] == [
        each.kind for each in heard if each is not None
    ]
    assert heard[0] is not None
    assert (1, 1, NAMESPACE) == (heard[0].num_pages, heard[0].num_bytes, heard[0].namespace)
    assert (1).to_bytes(32, "little") == heard[0].digest
    assert heard[2] is not None
    assert "why" == heard[2].text


async def test_a_slow_watcher_hears_how_much_it_missed() -> None:
    """The queue is bounded, so that nobody's terminal eats the server's memory."""
    feed = ChangeFeed()
    with feed.subscribed() as slow:
        for index in range(MAX_WAITING + 5):
            feed.changed(evicted(index))
        for index in range(MAX_WAITING):
            change = await slow.next()
            assert change is not None
            assert index == change.num_bytes
        skipped = await slow.next()
        assert skipped is not None
        assert (pb.CHANGE_KIND_SKIPPED, 5) == (skipped.kind, skipped.num_pages)
        feed.changed(evicted(7))
        after = await slow.next()
        assert after is not None
        assert 7 == after.num_bytes


async def test_what_was_missed_stands_where_it_is_missing() -> None:
    """Changes behind the gap come after it."""
    feed = ChangeFeed()
    with feed.subscribed() as slow:
        for index in range(MAX_WAITING + 2):
            feed.changed(evicted(index))
        await slow.next()
        feed.changed(evicted(99))
        kinds = []
        for _ in range(MAX_WAITING + 1):
            change = await slow.next()
            assert change is not None
            kinds.append(change.kind)
    assert [pb.CHANGE_KIND_SKIPPED, pb.CHANGE_KIND_EVICTED] == kinds[-2:]


async def test_the_end_of_the_server_ends_watching() -> None:
    """A watcher must not hold a server up that is told to stop."""
    feed = ChangeFeed()
    with feed.subscribed() as watching:
        waiting = asyncio.create_task(watching.next())
        await asyncio.sleep(0)
        feed.cleared(3, 4)
        change = await waiting
        assert change is not None
        assert (pb.CHANGE_KIND_CLEARED, 3, 4) == (change.kind, change.num_pages, change.num_bytes)
        feed.close()
        assert await watching.next() is None
