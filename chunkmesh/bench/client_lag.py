"""How late the benchmark's own client was: beyond a bound its figures are not the server's. Pure.

A message that waits for a busy client looks like a slow server, and a request that is sent late is
not the load that was asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict

from chunkmesh.bench.record import READ_STRICTLY

_SHARE = 0.1
_LEAST_MS = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientLag:
    """How late a client was in a run."""

    __pydantic_config__: ClassVar[ConfigDict] = READ_STRICTLY

    loop_p99_ms: float
    """How late the event loop came to what was due."""
    loop_max_ms: float
    late_p99_ms: float
    """How late requests were begun, against their schedule; 0 without one."""
    late_max_ms: float
    cpu_share: float
    """Of one core, used by the client during the run; near 1 is as much as a loop can do."""

    @classmethod
    def of(
        cls, loop_lags_s: Sequence[float], lateness_s: Sequence[float], *, cpu_share: float
    ) -> ClientLag:
        """Summarise what was measured, in seconds."""
        loop_p99_ms, loop_max_ms = _worst_ms(loop_lags_s)
        late_p99_ms, late_max_ms = _worst_ms(lateness_s)
        return cls(
            loop_p99_ms=loop_p99_ms,
            loop_max_ms=loop_max_ms,
            late_p99_ms=late_p99_ms,
            late_max_ms=late_max_ms,
            cpu_share=cpu_share,
        )

    def warning(self, *, median_ttft_ms: float | None, median_itl_ms: float | None) -> str:
        """Return what is wrong with a run's figures, or an empty text.

        A lag may be 1 ms, or a tenth of the least latency that was measured.
        """
        known = [each for each in (median_ttft_ms, median_itl_ms) if each is not None]
        bound_ms = max(_LEAST_MS, _SHARE * min(known, default=0.0))
        worst_ms = max(self.loop_p99_ms, self.late_p99_ms)
        if worst_ms <= bound_ms:
            return ""
        return (
            f"the client itself was late: event loop p99 {self.loop_p99_ms:.1f} ms, sending p99"
            f" {self.late_p99_ms:.1f} ms, bound {bound_ms:.1f} ms; latencies are partly the"
            " client's: give it an idle core, or a lower load"
        )


def _worst_ms(values_s: Sequence[float]) -> tuple[float, float]:
    """Return the 99th percentile and the greatest."""
    if not values_s:
        return 0.0, 0.0
    values = 1000 * np.asarray(values_s)
    return float(np.percentile(values, 99)), float(values.max())
