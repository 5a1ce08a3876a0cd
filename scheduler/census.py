"""How many requests run, and for what the others wait. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal, get_args

from scheduler.request import Request, RequestState

WaitReason = Literal["cache", "place", "route"]
"""For HiCache's answer, for pages and a row, or for a route that stands."""
WAIT_REASONS: tuple[WaitReason, ...] = get_args(WaitReason)


@dataclasses.dataclass(slots=True, kw_only=True)
class Census:
    """Requests that have not ended; each counts once, whatever the number of its outputs."""

    num_running: int = 0
    """Those of which an output has a place on a route, loading ones included."""
    num_waiting: dict[WaitReason, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(WAIT_REASONS, 0)
    )


def census(requests: Iterable[Iterable[Request]]) -> Census:
    """Count requests, each given as its outputs, at least one."""
    counted = Census()
    for outputs in requests:
        reason: WaitReason | None = "place"
        for output in outputs:
            reason = _reason(output)
            if reason is None:
                counted.num_running += 1
                break
        else:
            assert reason is not None, "a request has at least one output"
            counted.num_waiting[reason] += 1
    return counted


def _reason(output: Request) -> WaitReason | None:
    """Return for what an output waits; None if it has a place."""
    if output.row is not None:
        return None
    if output.epoch is None:
        return "route"
    return "cache" if output.state is RequestState.WAITING else "place"
