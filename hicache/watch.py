"""Tells watchers what happens to the cache; one that is slow misses changes and hears how many."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator

from chunkmesh.v1 import hicache_pb2 as pb
from hicache.changes import Summary

MAX_WAITING = 1024
"""Changes that may wait for one watcher."""


class Subscription:
    """One watcher's; owner of the changes that wait for it."""

    def __init__(self) -> None:
        self._waiting: deque[pb.WatchResponse] = deque()
        self._num_skipped = 0
        self._has_ended = False
        self._news = asyncio.Event()

    def tell(self, change: pb.WatchResponse) -> None:
        """Queue a change, or count it as skipped; never waits."""
        if len(self._waiting) >= MAX_WAITING:
            self._num_skipped += 1
        else:
            self._flush_skipped()
            self._waiting.append(change)
        self._news.set()

    def end(self) -> None:
        """Let nothing more come than what waits."""
        self._has_ended = True
        self._news.set()

    async def next(self) -> pb.WatchResponse | None:
        """Wait for the next change; None at the end."""
        if not self._waiting:
            self._flush_skipped()
        while not self._waiting and not self._has_ended:
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft() if self._waiting else None

    def _flush_skipped(self) -> None:
        if self._num_skipped:
            skipped = _response(pb.CHANGE_KIND_SKIPPED, num_pages=self._num_skipped)
            self._waiting.append(skipped)
            self._num_skipped = 0


class ChangeFeed:
    """All who watch."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    @contextlib.contextmanager
    def subscribed(self) -> Iterator[Subscription]:
        """Tell one more while inside."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def close(self) -> None:
        """End all subscriptions, because the server ends."""
        for subscription in self._subscriptions:
            subscription.end()

    def changed(self, change: Summary) -> None:
        """Tell of a change of pages or quotas."""
        if not self._subscriptions:
            return
        self._tell(
            _response(
                pb.ChangeKind.ValueType(change.kind.value),
                namespace=change.namespace or b"",
                num_pages=change.num_pages,
                num_queried_pages=change.num_queried_pages,
                num_bytes=change.num_bytes,
                digest=change.first or b"",
            )
        )

    def cleared(self, num_pages: int, num_bytes: int) -> None:
        """Tell that all pages went."""
        self._tell(_response(pb.CHANGE_KIND_CLEARED, num_pages=num_pages, num_bytes=num_bytes))

    def redis_up(self) -> None:
        """Tell that Redis answers again."""
        self._tell(_response(pb.CHANGE_KIND_REDIS_UP))

    def redis_down(self, reason: str) -> None:
        """Tell that Redis went away."""
        self._tell(_response(pb.CHANGE_KIND_REDIS_DOWN, text=reason))

    def _tell(self, change: pb.WatchResponse) -> None:
        for subscription in self._subscriptions:
            subscription.tell(change)


def _response(kind: pb.ChangeKind.ValueType, **values: object) -> pb.WatchResponse:
    return pb.WatchResponse(unix_ms=time.time_ns() // 1_000_000, kind=kind, **values)  # type: ignore[arg-type]
