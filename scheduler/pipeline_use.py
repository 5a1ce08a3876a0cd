"""How much of the time stages compute while there is work: one minus it is the bubble. Pure.

Work exists as long as a microbatch is in flight. Only what stages tell with acknowledgements and
when they are heard is counted; what is old fades.
"""

from __future__ import annotations

import math

_FADES_S = 30.0
"""After so much time with work, what was counted weighs 1/e of what is new."""


class PipelineUse:
    """Of one route."""

    def __init__(self, num_stages: int) -> None:
        """Begin without work."""
        self._busy_s = [0.0] * num_stages
        self._work_s = 0.0
        self._since_s: float | None = None
        """Up to when time with work was counted; None without work."""

    def sent(self, now_s: float) -> None:
        """Note that a microbatch is in flight."""
        if self._since_s is None:
            self._since_s = now_s

    def acked(self, stage: int, compute_ms: float, now_s: float) -> None:
        """Note how long a stage has computed one."""
        if self._since_s is not None:
            passed_s = max(now_s - self._since_s, 0.0)
            kept = math.exp(-passed_s / _FADES_S)
            self._busy_s = [busy_s * kept for busy_s in self._busy_s]
            self._work_s = self._work_s * kept + passed_s
            self._since_s = now_s
        self._busy_s[stage] += compute_ms / 1000

    def rest(self) -> None:
        """Note that nothing is in flight any more."""
        self._since_s = None

    @property
    def bubble_ratios(self) -> tuple[float, ...]:
        """Share of the time with work in which each stage waited, in [0, 1]; empty before any."""
        if not self._work_s:
            return ()
        return tuple(min(max(1 - busy / self._work_s, 0.0), 1.0) for busy in self._busy_s)
