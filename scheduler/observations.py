"""What the engine saw happen and operators want spread over buckets; no decision needs it. Pure.

One object is handed to all routes, and outlives them. Whoever shows it takes what there is.
"""

from __future__ import annotations

import dataclasses
from collections import deque

_MOST = 1 << 16
"""Values that are kept if nobody takes them, the newest."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Observations:
    """Values since they were taken last."""

    queue_s: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=_MOST))
    """From a request's arrival at the engine to its first place on a route, one a request."""
    chunk_tokens: deque[int] = dataclasses.field(default_factory=lambda: deque(maxlen=_MOST))
    """Length of each chunk that was sent, those of repeated prefills included."""


def taken(values: deque[int] | deque[float]) -> list[float]:
    """Return values in the order in which they came, and forget them."""
    returned = list(values)
    values.clear()
    return returned
