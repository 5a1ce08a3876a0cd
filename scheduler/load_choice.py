"""Whether stored pages are loaded or computed again. Pure.

Both take a fixed time and then one that grows: a load's with its bytes, a prompt's with its tokens
and, by attention, with what lies before them. The front of a hit is the cheapest to compute, so
loading only the front never beats both loading all of it and loading none. It is cut only by the
time that a load may take.
"""

from __future__ import annotations

import dataclasses

from scheduler.latency_model import PipelineLatency, Work
from scheduler.load_rates import LoadRates


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadChoice:
    """What the choice depends on beside the request."""

    page_tokens: int
    chunk_tokens: int
    """Longest chunk of a prompt, >= 1."""
    min_tokens: int
    """Fewer are computed where no latency is known."""

    def num_pages(
        self,
        wanted: range,
        rates: LoadRates,
        latency: PipelineLatency | None,
        *,
        timeout_s: float | None,
        now_s: float,
    ) -> int:
        """Return how many of the wanted pages of a prompt are loaded, from the first on.

        timeout_s is the longest that the load may take, if there is a limit.
        """
        num_pages = len(wanted)
        if latency is None:
            return num_pages if num_pages * self.page_tokens >= self.min_tokens else 0
        if timeout_s is not None:
            num_pages = min(num_pages, rates.pages_within(timeout_s, now_s))
        if not num_pages:
            return 0
        first = wanted.start * self.page_tokens
        compute_s = self._compute_s(first, first + num_pages * self.page_tokens, latency)
        return num_pages if rates.load_s(num_pages, now_s) <= compute_s else 0

    def _compute_s(self, start: int, end: int, latency: PipelineLatency) -> float:
        """Return what positions [start, end) add to a prompt's time, as if its chunks were alike.

        A pipeline that is full brings one chunk each time that its slowest stage takes.
        """
        num_chunks = -(-(end - start) // self.chunk_tokens)
        mean = Work(
            prefix_tokens=(start + end) // 2,
            new_tokens=(end - start) // num_chunks,
            pairs=(end * end - start * start) // num_chunks,
        )
        return num_chunks * latency.microbatch_ms(mean) / 1000
