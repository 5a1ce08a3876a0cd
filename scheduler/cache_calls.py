"""The engine's wishes to HiCache, as tasks; a fault is a miss and never reaches a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from chunkmesh.layers import LayerRange
from chunkmesh.pages import Namespace
from scheduler import actions, events
from scheduler.hicache_client import RENEW_S, HiCacheClient


class CacheCalls:
    """Owns the calls to HiCache that are under way."""

    def __init__(
        self, hicache: HiCacheClient | None, on_event: Callable[[events.Event], None]
    ) -> None:
        """Without a client every match is empty."""
        self._hicache = hicache
        self._on_event = on_event
        self._leases: dict[str, float] = {}
        """Leases that requests hold, and when each was given or renewed last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        """Of a call that failed by a bug; faults of the cache are none."""

    def match(self, action: actions.MatchPrefix) -> None:
        """Ask for a prefix; the answer comes as Matched, never within this call."""
        self._spawn(self._match(action))

    def check_stored(self, action: actions.CheckStored) -> None:
        """Ask what is stored; the answer comes as Checked, never within this call."""
        self._spawn(self._check(action))

    def release_lease(self, action: actions.ReleaseLease) -> None:
        """Give a lease back."""
        self._leases.pop(action.lease_id, None)
        if self._hicache is not None:
            self._spawn(self._hicache.release_lease(action.lease_id))

    def renew_leases(self, now_s: float) -> None:
        """Renew the leases that are due; now_s is the monotonic clock.

        What has ended by then is not renewed again: its pages are a miss if they are gone.
        """
        due = [lease for lease, since_s in self._leases.items() if now_s - since_s >= RENEW_S]
        if due and self._hicache is not None:
            self._leases.update(dict.fromkeys(due, now_s))
            self._spawn(self._renew(self._hicache, due))

    def invalidate(self, digests: tuple[bytes, ...]) -> None:
        """Report pages that were found missing or damaged."""
        if self._hicache is not None:
            self._spawn(self._hicache.invalidate(digests))

    def commit(
        self,
        action: actions.CommitPages,
        *,
        namespace: Namespace,
        layers: LayerRange,
        model_layers: int,
        page_bytes: int,
    ) -> None:
        """Report pages that a stage has written; page_bytes is a page's size in those layers."""
        if self._hicache is not None:
            self._spawn(
                self._hicache.commit(
                    action,
                    namespace=namespace,
                    layers=layers,
                    model_layers=model_layers,
                    page_bytes=page_bytes,
                )
            )

    def check(self) -> None:
        """Raise the error of a call that failed by a bug, if one did."""
        if self._failure is not None:
            raise self._failure

    async def ended(self) -> None:
        """Wait for the calls under way; each has a deadline of its own."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Stop the calls under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._hicache is not None:
            await self._hicache.close()

    async def _renew(self, hicache: HiCacheClient, lease_ids: list[str]) -> None:
        """Renew leases, and forget those that have ended."""
        for lease_id in await hicache.renew(lease_ids):
            self._leases.pop(lease_id, None)

    async def _match(self, action: actions.MatchPrefix) -> None:
        """Ask and answer."""
        num_pages: int | None = None
        lease_id: str | None = None
        if self._hicache is not None:
            num_pages, lease_id = await self._hicache.match(action.digests)
        if lease_id is not None:
            self._leases[lease_id] = time.monotonic()
        self._on_event(
            events.Matched(
                request_id=action.request_id,
                child=action.child,
                num_pages=num_pages or 0,
                is_known=num_pages is not None,
                lease_id=lease_id,
            )
        )

    async def _check(self, action: actions.CheckStored) -> None:
        """Ask and answer."""
        num_pages = None
        if self._hicache is not None:
            num_pages = await self._hicache.num_stored(action.digests)
        self._on_event(events.Checked(last_digest=action.digests[-1], num_pages=num_pages))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call and keep its task until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let go of a call."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
