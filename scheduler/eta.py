"""When the prompts of a route will be computed, by the latency model. Pure.

What is left of each prompt is looked at once for each acknowledgement, however many ask.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.latency_model import PipelineLatency
from scheduler.outlook import rest_ms, time_left_ms
from scheduler.request import Request, RequestState


class Eta:
    """Of the outputs in PREFILL of one route."""

    def __init__(self, window: int) -> None:
        """At most window microbatches are in flight."""
        self._window = window
        self._rests_ms: dict[Request, float] | None = None
        """Time that is left of each; None if that has changed."""

    def forget(self) -> None:
        """Note that something was acknowledged."""
        self._rests_ms = None

    def left_s(
        self, request: Request, running: Iterable[Request], latency: PipelineLatency
    ) -> float:
        """Return the time until an output's known tokens are computed, beside all that run."""
        if self._rests_ms is None:
            self._rests_ms = {
                other: rest_ms(other.prefill, latency)
                for other in running
                if other.state is RequestState.PREFILL
            }
        priority = request.spec.priority
        others_ms = [
            other_ms
            for other, other_ms in self._rests_ms.items()
            if other is not request and other.spec.priority >= priority
        ]
        return time_left_ms(request.prefill, others_ms, latency, window=self._window) / 1000
