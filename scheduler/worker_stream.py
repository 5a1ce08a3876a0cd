"""One attached worker: its bounded queue of orders and when it was last heard."""

from __future__ import annotations

import asyncio
from collections import deque

from chunkmesh.v1 import stage_pb2 as pb

_MAX_QUEUED = 4096


class WorkerStream:
    """The scheduler's end of an Attach stream: the control loop puts, the stream's writer takes."""

    def __init__(self, *, worker_id: str, last_heard_s: float) -> None:
        """Start with nothing to send; last_heard_s is on the scheduler's monotonic clock."""
        self.worker_id = worker_id
        self.last_heard_s = last_heard_s
        self.lost_reason = ""
        """Why the worker was given up; empty while it was not."""
        self._orders: deque[pb.AttachResponse] = deque()
        self._news = asyncio.Event()

    def send(self, order: pb.AttachResponse) -> bool:
        """Queue an order; False if the worker has not taken thousands of earlier ones."""
        if len(self._orders) >= _MAX_QUEUED:
            return False
        self._orders.append(order)
        self._news.set()
        return True

    def give_up(self, reason: str) -> None:
        """Let the stream end; orders still queued are dropped."""
        self.lost_reason = reason
        self._news.set()

    async def next_order(self) -> pb.AttachResponse | None:
        """Wait for an order; None once the worker is given up."""
        while not self._orders and not self.lost_reason:
            self._news.clear()
            await self._news.wait()
        return None if self.lost_reason else self._orders.popleft()
