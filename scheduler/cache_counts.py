"""What an engine's caches have been good for since it began; grows only. Plain values.

One object is handed to all that count, and outlives routes.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Literal, Self, get_args

LoadOutcome = Literal["complete", "partial", "empty", "dropped", "recomputed"]
"""What became of a match of stored pages: all that was to be loaded is used, or its front, or
nothing came; it was not used, because its request had ended or no longer needed it; it was not
loaded, because computing is faster."""
LOAD_OUTCOMES: tuple[LoadOutcome, ...] = get_args(LoadOutcome)


@dataclasses.dataclass(slots=True, kw_only=True)
class CacheCounts:
    """Tokens and pages; those of outputs that were preempted count each time."""

    device_query_tokens: int = 0
    """Known tokens of outputs that began, looked for on the devices."""
    host_query_tokens: int = 0
    """Those of them that the devices did not have, looked for in host memory if there is any."""
    redis_query_tokens: int = 0
    """Those that neither had, of outputs for which HiCache has answered."""
    device_hit_tokens: int = 0
    """Not computed, because the devices still had them."""
    host_hit_tokens: int = 0
    """Not computed, because all stages had them in host memory."""
    redis_hit_tokens: int = 0
    """Not computed, because the stages have loaded them, from Redis at least one of them."""
    evicted_pages: int = 0
    """Device pages that made room for others."""
    host_evicted_pages: int = 0
    """Host pages that made room for others."""
    host_dropped_pages: int = 0
    """Full pages that were not copied to host memory, because all there was in use."""
    unwritten_pages: int = 0
    """Pages that were to be written back and were not, because too many stores were under way."""
    loads: dict[LoadOutcome, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(LOAD_OUTCOMES, 0)
    )
    """Matches of stored pages behind those on the devices, by what became of them."""
    timed_out_loads: int = 0
    """Of those loads, how many ended at their time limit or without a stage's answer."""

    def copy(self) -> Self:
        """Return the counts as they are now."""
        return copy.deepcopy(self)
