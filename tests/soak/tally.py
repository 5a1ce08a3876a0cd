"""What became of the requests of a soak, and whether that is what had to."""

from __future__ import annotations

import dataclasses
from collections import Counter


@dataclasses.dataclass(slots=True, kw_only=True)
class Tally:
    """Counts that clients add to."""

    outcomes: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    """Requests by what the client did and how its call ended."""
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    """Faults that were injected, by name."""
    cuts_s: list[float] = dataclasses.field(default_factory=list)
    """When faults were injected that may cut streams, by the monotonic clock."""
    num_cut: int = 0
    """Requests that ended UNAVAILABLE behind their first output under such a fault."""
    num_retried: int = 0
    """Calls that were made again, as clients should."""
    unexpected: list[str] = dataclasses.field(default_factory=list)
    """Ends that no client should see, in words."""
    num_compared: int = 0
    """Tokens that were held against the reference."""
    num_wrong: int = 0
    """Those that differ."""

    def compare(self, expected: list[int], actual: list[int]) -> None:
        """Hold a part of an answer against what the reference says, which goes at least so far."""
        self.num_compared += len(actual)
        self.num_wrong += sum(a != b for a, b in zip(expected, actual, strict=False))

    @property
    def num_requests(self) -> int:
        """All requests."""
        return sum(self.outcomes.values())
