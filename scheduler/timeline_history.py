"""The timelines of the last requests that have ended, for whoever asks afterwards. Pure.

The control loop adds each request at its end; memory is bounded whatever requests there were.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from chunkmesh.errors import InvalidRequest
from scheduler.timeline import Track

MAX_REQUESTS = 32
MAX_PARTS = 1 << 14
"""Of all requests together; each may be a microbatch of its own with the times of every stage."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimeline:
    """One request and when the stages worked on it. Times in microseconds since it arrived."""

    request_id: str
    user: str
    """Whose it is; empty if nobody's in particular."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """Of all outputs."""
    first_token_us: int | None
    """None before the first token."""
    ended_us: int | None
    """None while it runs."""
    finish_reason: str
    """Empty while it runs."""
    track: Track


class TimelineHistory:
    """Keeps the last requests; the newest always, the oldest go first."""

    def __init__(self, *, max_requests: int = MAX_REQUESTS, max_parts: int = MAX_PARTS) -> None:
        """Keep at most max_requests, and max_parts of all but the newest."""
        self._max_requests = max_requests
        self._max_parts = max_parts
        self._kept: deque[RequestTimeline] = deque()
        """In the order of their ends."""
        self._num_parts = 0
        """Of all that are kept."""

    def __iter__(self) -> Iterator[RequestTimeline]:
        return iter(self._kept)

    def add(self, ended: RequestTimeline) -> None:
        """Keep a request that has ended."""
        self._kept.append(ended)
        self._num_parts += ended.track.num_kept
        while len(self._kept) > self._max_requests or (
            self._num_parts > self._max_parts and len(self._kept) > 1
        ):
            self._num_parts -= self._kept.popleft().track.num_kept


def chosen(
    known: Iterable[RequestTimeline], *, request_ids: Sequence[str], last: int
) -> list[RequestTimeline]:
    """Return the requests that are named, or the last to arrive (all if last is 0); by arrival.

    Of those of one user that shared an id it is the last.

    Raises:
        InvalidRequest: one that is named is not known.
    """
    by_arrival = sorted(known, key=lambda each: each.track.arrived_us)
    if not request_ids:
        return by_arrival[-last:]
    latest = {(each.request_id, each.user): each for each in by_arrival}
    known_ids = {request_id for request_id, _ in latest}
    for request_id in request_ids:
        if request_id not in known_ids:
            raise InvalidRequest(
                f"no timeline of request {request_id!r} is kept: it is unknown, or {MAX_REQUESTS}"
                " others or very long ones have ended since",
                field="request_ids",
            )
    asked = [each for (request_id, _), each in latest.items() if request_id in set(request_ids)]
    return sorted(asked, key=lambda each: each.track.arrived_us)
