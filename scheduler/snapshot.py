"""The state of the engine in numbers, for GetServerInfo and metrics. Plain values."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counts for a person."""

    epoch: int
    """Of the last route that stood; 0 before the first."""
    num_pages: int
    """0 without a route, as all that follow but num_preemptions."""
    num_free_pages: int
    num_running: int
    """Outputs that have a row; until a prompt's first tokens are there, all of its request."""
    num_waiting: int
    """Requests, and outputs that were preempted."""
    num_in_flight: int
    """Microbatches that some stage has not acknowledged."""
    num_loads: int
    num_stores: int
    num_preemptions: int
    """Outputs that gave their pages to others since the start, whatever the route."""
