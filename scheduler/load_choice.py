"""Whether pages are loaded, from host memory or from Redis, or computed again. Pure.

Each takes a fixed time and then one that grows: a load's with its bytes, a prompt's with its tokens
and, by attention, with what lies before them. The front of a hit is the cheapest to compute, so of
one tier loading only the front never beats both loading all of it and loading none. It is cut only
by the time that a load from Redis may take. Host pages lie before those of Redis: of a hit that is
in both, none, the host pages or all are loaded.
"""

from __future__ import annotations

import dataclasses

from scheduler.latency_model import PipelineLatency, Work
from scheduler.load_rates import LoadRates


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a prompt could have instead of computing it."""

    pages: range
    """Of the prompt, behind those on the devices."""
    num_host: int = 0
    """How many of the first ones are in host memory; the others are in Redis."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierRates:
    """How fast pages come from each tier."""

    redis: LoadRates
    host: LoadRates


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
        wanted: Wanted,
        rates: TierRates,
        latency: PipelineLatency | None,
        *,
        timeout_s: float | None,
        now_s: float,
    ) -> int:
        """Return how many of the wanted pages of a prompt are loaded, from the first on.

        timeout_s is the longest that a load from Redis may take, if there is a limit.
        """
        num_host, num_redis = wanted.num_host, len(wanted.pages) - wanted.num_host
        if latency is None:
            is_worth = num_redis * self.page_tokens >= self.min_tokens
            return num_host + (num_redis if is_worth else 0)
        if timeout_s is not None:
            num_redis = min(num_redis, rates.redis.pages_within(timeout_s, now_s))
        first = wanted.pages.start
        behind, end = first + num_host, first + num_host + num_redis
        host_s = rates.host.load_s(num_host, now_s) if num_host else 0.0
        redis_s = rates.redis.load_s(num_redis, now_s) if num_redis else 0.0
        takes_s = {
            num_host + num_redis: host_s + redis_s,
            num_host: host_s + self._compute_s(behind, end, latency),
            0: self._compute_s(first, end, latency),
        }
        return min(takes_s, key=takes_s.__getitem__)

    def _compute_s(self, first: int, behind: int, latency: PipelineLatency) -> float:
        """Return what pages [first, behind) add to a prompt's time, as if its chunks were alike.

        A pipeline that is full brings one chunk each time that its slowest stage takes.
        """
        if first == behind:
            return 0.0
        start, end = first * self.page_tokens, behind * self.page_tokens
        num_chunks = -(-(end - start) // self.chunk_tokens)
        mean = Work(
            prefix_tokens=(start + end) // 2,
            new_tokens=(end - start) // num_chunks,
            pairs=(end * end - start * start) // num_chunks,
        )
        return num_chunks * latency.microbatch_ms(mean) / 1000
