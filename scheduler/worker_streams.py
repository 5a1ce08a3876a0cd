"""The streams of all attached workers, and who of them has fallen silent."""

from __future__ import annotations

import time

from scheduler.worker_stream import WorkerStream

LOOK_S = 0.1
"""Time between two looks at the clock."""


class WorkerStreams:
    """Owns one stream a worker."""

    def __init__(self) -> None:
        """Start without streams."""
        self._streams: dict[str, WorkerStream] = {}
        self._looked_s = time.monotonic()
        """When silent() was last called."""
        self.deaf_s = 0.0
        """How long the event loop stood still before that."""

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, worker_id: str, now_s: float) -> WorkerStream:
        """Make a worker's stream."""
        stream = WorkerStream(worker_id=worker_id, last_heard_s=now_s)
        self._streams[worker_id] = stream
        return stream

    def get(self, worker_id: str) -> WorkerStream | None:
        """Return the stream of a worker, if it has one."""
        return self._streams.get(worker_id)

    def pop(self, worker_id: str) -> WorkerStream | None:
        """Forget and return the stream of a worker, if it has one."""
        return self._streams.pop(worker_id, None)

    def pop_all(self) -> list[WorkerStream]:
        """Forget and return all streams."""
        streams = list(self._streams.values())
        self._streams.clear()
        return streams

    def silent(self, now_s: float, timeout_s: float) -> list[tuple[str, float]]:
        """Return workers that have said nothing for longer than timeout_s, and for how long.

        Time in which the event loop itself stood still is nobody's silence: what workers said
        meanwhile is still unread.
        """
        self.deaf_s = max(0.0, now_s - self._looked_s - LOOK_S)
        self._looked_s = now_s
        for stream in self._streams.values():
            stream.last_heard_s = min(now_s, stream.last_heard_s + self.deaf_s)
        return [
            (stream.worker_id, now_s - stream.last_heard_s)
            for stream in self._streams.values()
            if now_s - stream.last_heard_s > timeout_s
        ]
