"""The HTTP requests that are open: how many there may be, and how they end at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from chunkmesh.gateway.api_error import ApiError, unavailable

_BODIES = 8
"""Bodies of the largest size that may be held at a time."""


class OpenRequests:
    """Owner of all requests that ask the mesh for output."""

    def __init__(self, *, max_requests: int, max_body_bytes: int) -> None:
        """Begin with none."""
        self.max_body_bytes = max_body_bytes
        self.draining = False
        """Whether new ones are refused because the gateway shuts down."""
        self.is_over = False
        """Whether those that were left have been cancelled."""
        self._max_requests = max_requests
        self._tasks: set[asyncio.Task[object]] = set()
        self._num_prompts = 0
        self._held_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Be open while inside; the current task is the request's.

        Raises:
            ApiError: there are too many, or no new ones are taken.
        """
        if self.draining:
            raise unavailable("the gateway is shutting down")
        task = asyncio.current_task()
        assert task is not None, "requests run in tasks"
        with self.prompts(1):
            self._tasks.add(task)
            self._idle.clear()
            try:
                yield
            finally:
                self._tasks.discard(task)
                if not self._tasks:
                    self._idle.set()

    @contextlib.contextmanager
    def prompts(self, num_prompts: int) -> Iterator[None]:
        """Count so many prompts while inside.

        Raises:
            ApiError: they would be too many.
        """
        if self._num_prompts + num_prompts > self._max_requests:
            raise _overloaded(f"{self._num_prompts} prompts are open, limit {self._max_requests}")
        self._num_prompts += num_prompts
        try:
            yield
        finally:
            self._num_prompts -= num_prompts

    @contextlib.contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Hold a body while inside.

        Raises:
            ApiError: too many bytes are held.
        """
        limit = _BODIES * self.max_body_bytes
        if self._held_bytes + num_bytes > limit:
            raise _overloaded(f"open requests have {self._held_bytes} bytes, limit {limit}")
        self._held_bytes += num_bytes
        try:
            yield
        finally:
            self._held_bytes -= num_bytes

    async def drain(self, timeout_s: float) -> int:
        """Take no new ones, wait for the others, and return how many had to be cancelled."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        self.is_over = True
        num_left = len(self._tasks)
        for task in self._tasks:
            task.cancel()
        return num_left


def _overloaded(message: str) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", retry_after_s=1.0)
