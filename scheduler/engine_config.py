"""The engine's limits. Plain values; the shell fills them from its settings."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, get_args

from chunkmesh.errors import ConfigError

ChunkStrategyName = Literal["fixed", "dynamic", "optimal"]
LoadPolicy = Literal["best_effort", "wait_complete", "timeout"]
WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
CHUNK_STRATEGIES: tuple[ChunkStrategyName, ...] = get_args(ChunkStrategyName)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine may do at most."""

    page_tokens: int
    """Token positions a page holds, >= 1."""
    chunked_prefill_tokens: int
    """Most prefill tokens in one microbatch, >= 1; decode rows come on top."""
    max_running_requests: int
    """Most outputs that have a row, >= 1."""
    max_queued_requests: int
    """Most requests that wait for a row, >= 1; more are refused."""
    max_queued_tokens: int = 0
    """Most prompt tokens of requests that wait, >= 0; 0 means no limit, as for the next three."""
    max_running_requests_per_user: int = 0
    """Most outputs of one user that have a row."""
    max_queued_requests_per_user: int = 0
    """Most requests of one user that wait for a row."""
    max_queued_tokens_per_user: int = 0
    """Most prompt tokens of one user's requests that wait."""
    load_timeout_s: float
    """With load_policy timeout how long stages may read a hit, > 0; then what is there is used."""
    load_timeout_s_per_1k_tokens: float = 0.0
    """Added to it for every 1000 tokens of the hit, >= 0."""
    load_policy: LoadPolicy = "timeout"
    """When a load ends that has not brought all (loads.py)."""
    load_min_tokens: int = 0
    """Fewer stored tokens are computed where no latency is known, >= 0."""
    max_outstanding_stores: int
    """Most stores that some stage has not ended, >= 0; 0 stores nothing."""
    write_policy: WritePolicy = "write_through"
    """When a full page is stored (stores.py)."""
    enable_prefix_caching: bool = False
    """Whether pages stay on the devices for later requests until their room is needed."""
    pp_async_batch_depth: int = 0
    """Added to the in-flight window of num_stages + 1; if negative it shrinks, at most to 1."""
    decode_groups: int | None = None
    """Groups that decoding requests are spread over, >= 1; None means as many as stages."""
    max_microbatch_requests: int | None = None
    """Most requests in one microbatch, >= 1; None means no limit."""
    chunk_strategy: ChunkStrategyName = "optimal"
    """How prompts are cut where the stages' latency is known well enough; else fixed."""
    is_default_strategy: bool = False
    """Whether nobody has asked for chunk_strategy by name."""
    dynamic_smooth_factor: float = 0.75
    """In [0, 1]; of dynamic chunks."""
    max_chunk_ms: float | None = None
    """Longest microbatch with a chunk that optimal plans while others decode or prefill, > 0; None
    means no limit."""
    stage_deadline_floor_s: float | None = None
    """Least time that a stage has for a microbatch, >= 0; 0 sets no deadlines, None is as the
    devices of a route need (stage_deadlines.py)."""
    context_tokens: int | None = None
    """Longest prompt and output together, >= 1, which dynamic chunks look at; None means none."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of range; named with its limit.
        """
        for name, least in (
            ("page_tokens", 1),
            ("chunked_prefill_tokens", 1),
            ("max_running_requests", 1),
            ("max_queued_requests", 1),
            ("max_queued_tokens", 0),
            ("max_running_requests_per_user", 0),
            ("max_queued_requests_per_user", 0),
            ("max_queued_tokens_per_user", 0),
            ("max_outstanding_stores", 0),
            ("load_timeout_s_per_1k_tokens", 0),
            ("load_min_tokens", 0),
        ):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} is {value}, must be at least {least}")
        if not self.load_timeout_s > 0:
            raise ConfigError(f"load_timeout_s is {self.load_timeout_s}, must be above 0")
        for name in ("decode_groups", "max_microbatch_requests", "context_tokens"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ConfigError(f"{name} is {count}, must be at least 1")
        if not 0 <= self.dynamic_smooth_factor <= 1:
            raise ConfigError(
                f"dynamic_smooth_factor is {self.dynamic_smooth_factor}, must be in [0, 1]"
            )
        floor_s = self.stage_deadline_floor_s
        if floor_s is not None and not 0 <= floor_s < math.inf:
            raise ConfigError(f"stage_deadline_floor_s is {floor_s}, must be >= 0 and finite")
        if self.max_chunk_ms is not None and not 0 < self.max_chunk_ms < math.inf:
            raise ConfigError(f"max_chunk_ms is {self.max_chunk_ms}, must be above 0 and finite")

    @property
    def max_microbatch_tokens(self) -> int:
        """Most tokens in one microbatch: what the stages' buffers must hold."""
        return self.chunked_prefill_tokens + self.max_running_requests

    def window(self, num_stages: int) -> int:
        """Return the most microbatches sent and not acknowledged by the last stage, >= 1."""
        return max(1, num_stages + 1 + self.pp_async_batch_depth)

    def num_decode_groups(self, num_stages: int) -> int:
        """Return how many groups decoding requests are spread over, >= 1.

        So many at least that no group outgrows a microbatch.
        """
        num_groups = self.decode_groups or num_stages
        if self.max_microbatch_requests is None:
            return num_groups
        return max(num_groups, -(-self.max_running_requests // self.max_microbatch_requests))

    def load_limit_s(self, num_pages: int) -> float | None:
        """Return how long the stages may read so many pages; None if they have no limit."""
        if self.load_policy != "timeout":
            return None
        num_tokens = num_pages * self.page_tokens
        return self.load_timeout_s + self.load_timeout_s_per_1k_tokens * num_tokens / 1000

    def pages_for(self, num_tokens: int) -> int:
        """Return the pages that num_tokens positions take."""
        return -(-num_tokens // self.page_tokens)
