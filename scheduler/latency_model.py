"""How long a microbatch takes on a stage, and on the slowest stage of a pipeline. Pure values.

A chunk of x tokens behind L computes x*L pairs of its tokens with the prefix and, its own pairs
being half a square, x*x/2 with itself; 2*L*x + x*x is twice that and is the telescoping difference
of squares (L+x)**2 - L**2. Fitted by scheduler.latency_fit, used by the strategies that cut chunks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from scheduler.size_ratios import SizeRatios

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

TERMS = (
    "fixed_ms",
    "ms_per_prefix_token",
    "ms_per_token",
    "ms_per_pair",
    "ms_per_row",
    "ms_per_row_token",
)
"""Fields of StageLatency that grow with the work, in the order of Work.features."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a microbatch asks of a stage, as far as its time depends on it; sums over its parts."""

    prefix_tokens: int = 0
    """Sum of L over chunks: tokens computed before each."""
    new_tokens: int = 0
    """Sum of x over chunks: their own tokens."""
    pairs: int = 0
    """Sum of 2*L*x + x*x over chunks."""
    num_rows: int = 0
    """Decode rows."""
    row_tokens: int = 0
    """Sum over decode rows of the tokens that each looks at."""

    @classmethod
    def of_chunk(cls, start: int, end: int) -> Self:
        """Return the work of the chunk [start, end)."""
        return cls(prefix_tokens=start, new_tokens=end - start, pairs=end * end - start * start)

    @classmethod
    def of_rows(cls, lengths: Iterable[int]) -> Self:
        """Return the work of decode rows that look at these numbers of tokens."""
        listed = tuple(lengths)
        return cls(num_rows=len(listed), row_tokens=sum(listed))

    def __add__(self, other: Work) -> Work:
        return Work(
            prefix_tokens=self.prefix_tokens + other.prefix_tokens,
            new_tokens=self.new_tokens + other.new_tokens,
            pairs=self.pairs + other.pairs,
            num_rows=self.num_rows + other.num_rows,
            row_tokens=self.row_tokens + other.row_tokens,
        )

    @property
    def features(self) -> tuple[float, ...]:
        """What each of TERMS is multiplied with."""
        return (
            1.0,
            float(self.prefix_tokens),
            float(self.new_tokens),
            float(self.pairs),
            float(self.num_rows),
            float(self.row_tokens),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageLatency:
    """edge + max(floor, fixed + what grows with the work). All terms finite and >= 0.

    What the tokens and pairs of chunks take is multiplied with a ratio by the number of these
    tokens.

    Source (the terms of a chunk): https://arxiv.org/abs/2102.07988
    """

    floor_ms: float = 0.0
    """No microbatch takes less, however small: launching the layers' work."""
    fixed_ms: float = 0.0
    """Paid by each microbatch beside what grows."""
    ms_per_prefix_token: float = 0.0
    """Of each chunk, for every token before it: unpacking compressed KV. <= ms_per_token."""
    ms_per_token: float = 0.0
    """For every token of a chunk: the matrix products."""
    ms_per_pair: float = 0.0
    """For every unit of Work.pairs: attention."""
    ms_per_row: float = 0.0
    """For every decode row."""
    ms_per_row_token: float = 0.0
    """For every token that a decode row looks at."""
    edge_ms: float = 0.0
    """Beside the layers, for each microbatch: embedding or head, sampling, the mesh's own time."""
    rows_fixed_ms: float | None = None
    """What takes the place of fixed_ms and the floor where there are decode rows alone, reading
    the weights most of all; None if nothing does. Other operations are launched for them than for
    chunks, and as a graph in one go."""
    size_ratios: SizeRatios | None = None
    """What sizes make of ms_per_token and ms_per_pair; None if nothing."""

    def __post_init__(self) -> None:
        for name in ("floor_ms", *TERMS, "edge_ms", "least_rows_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}, must be finite and >= 0")
        if self.ms_per_prefix_token > self.ms_per_token:
            raise ValueError(
                f"ms_per_prefix_token is {self.ms_per_prefix_token}, must be at most"
                f" ms_per_token, {self.ms_per_token}: else cutting a prompt would slow each part"
            )

    def microbatch_ms(self, work: Work) -> float:
        """Return the time of a microbatch that does this work."""
        if self.rows_fixed_ms is not None and not work.new_tokens:
            return self.edge_ms + self.rows_fixed_ms + self.grows_ms(work)
        return self.edge_ms + max(self.floor_ms, self.fixed_ms + self.grows_ms(work))

    @property
    def least_rows_ms(self) -> float:
        """What decode rows alone take however few they are, without the edge."""
        if self.rows_fixed_ms is None:
            return max(self.floor_ms, self.fixed_ms)
        return self.rows_fixed_ms

    def grows_ms(self, work: Work) -> float:
        """Return what this work adds to a microbatch that is above the floor."""
        return (
            self.chunks_own_ms(work)
            + self.ms_per_prefix_token * work.prefix_tokens
            + self.ms_per_row * work.num_rows
            + self.ms_per_row_token * work.row_tokens
        )

    def chunks_own_ms(self, work: Work) -> float:
        """Return what the tokens and pairs of its chunks take, with the ratio of their size."""
        own_ms = self.ms_per_token * work.new_tokens + self.ms_per_pair * work.pairs
        return own_ms * self.ratio_at(work.new_tokens)

    def ratio_at(self, new_tokens: int) -> float:
        """Return the ratio of a size."""
        return self.size_ratios.at(new_tokens) if self.size_ratios else 1.0

    def chunk_ms(self, start: int, end: int) -> float:
        """Return the time of a microbatch that is the chunk [start, end) alone."""
        own_ms = self.ms_per_token * (end - start) + self.ms_per_pair * (end * end - start * start)
        if self.size_ratios:
            own_ms *= self.size_ratios.at(end - start)
        grows = self.fixed_ms + self.ms_per_prefix_token * start + own_ms
        return self.edge_ms + max(self.floor_ms, grows)

    def chunks_ms(self, starts: FloatArray, ends: FloatArray) -> FloatArray:
        """Return the times of chunks, each a microbatch of its own; arrays of one shape."""
        tokens = ends - starts
        own_ms = tokens * (self.ms_per_token + self.ms_per_pair * (ends + starts))
        if self.size_ratios:
            own_ms = own_ms * self.size_ratios.of_sizes(tokens)
        grows = self.fixed_ms + self.ms_per_prefix_token * starts + own_ms
        return self.edge_ms + np.maximum(self.floor_ms, grows)

    def at_any_size(self) -> Self:
        """Return what sizes have no say in, and no chunk takes longer than."""
        return self._without_sizes(self.size_ratios.most if self.size_ratios else 1.0)

    def as_if(self, tokens: int) -> Self:
        """Return what sizes have no say in, and a chunk of so many tokens takes."""
        return self._without_sizes(self.ratio_at(tokens))

    def _without_sizes(self, ratio: float) -> Self:
        """Return the stage with one ratio for all sizes."""
        if self.size_ratios is None:
            return self
        return dataclasses.replace(
            self,
            ms_per_prefix_token=min(self.ms_per_prefix_token, self.ms_per_token * ratio),
            ms_per_token=self.ms_per_token * ratio,
            ms_per_pair=self.ms_per_pair * ratio,
            size_ratios=None,
        )

    def of_layers(self, num_layers: int) -> Self:
        """Return the stage of num_layers layers like the one that this describes."""
        scaled = {name: getattr(self, name) * num_layers for name in ("floor_ms", *TERMS)}
        if self.rows_fixed_ms is not None:
            scaled["rows_fixed_ms"] = self.rows_fixed_ms * num_layers
        return dataclasses.replace(self, **scaled)

    def with_overhead(self, overhead_ms: float) -> Self:
        """Return the stage when each microbatch takes overhead_ms more."""
        return dataclasses.replace(self, edge_ms=self.edge_ms + overhead_ms)


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineLatency:
    """One latency for each stage, in the pipeline's order; the slowest sets the rhythm."""

    stages: tuple[StageLatency, ...]
    """At least one."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a pipeline has at least one stage")

    @property
    def num_stages(self) -> int:
        """Stages, >= 1."""
        return len(self.stages)

    def microbatch_ms(self, work: Work) -> float:
        """Return the time of a microbatch on the stage that is slowest with it."""
        return max(stage.microbatch_ms(work) for stage in self.stages)

    def chunk_ms(self, start: int, end: int) -> float:
        """Return the time of the chunk [start, end) on the stage that is slowest with it."""
        return max(stage.chunk_ms(start, end) for stage in self.stages)

    def chunks_ms(self, starts: FloatArray, ends: FloatArray) -> FloatArray:
        """Return the times of chunks, each on the stage that is slowest with it."""
        times_ms = [stage.chunks_ms(starts, ends) for stage in self.rhythm()]
        return functools.reduce(np.maximum, times_ms)

    def at_any_size(self) -> PipelineLatency:
        """Return the pipeline of its stages at any size."""
        return PipelineLatency(tuple(stage.at_any_size() for stage in self.stages))

    def as_if(self, tokens: int) -> PipelineLatency:
        """Return the pipeline of its stages as if all chunks were of a size."""
        return PipelineLatency(tuple(stage.as_if(tokens) for stage in self.stages))

    def rhythm(self) -> tuple[StageLatency, ...]:
        """Return the stages that can be the slowest: none is at least as slow in every term."""
        kept: list[StageLatency] = []
        for stage in dict.fromkeys(self.stages):
            if not any(_covers(other, stage) for other in kept):
                kept = [*(other for other in kept if not _covers(stage, other)), stage]
        return tuple(kept)


def rows_fixed_ms(shares: Sequence[tuple[StageLatency, float]]) -> float | None:
    """Return what parts of stages have together, by how much of each; None as there."""
    if all(latency.rows_fixed_ms is None for latency, _ in shares):
        return None
    return sum(latency.least_rows_ms * share for latency, share in shares)


def _covers(slow: StageLatency, fast: StageLatency) -> bool:
    """Say whether no term of fast is above that of slow, and all terms mean the same to both."""
    are_alike = slow.size_ratios == fast.size_ratios and (
        (slow.rows_fixed_ms is None) == (fast.rows_fixed_ms is None)
    )
    return are_alike and all(
        getattr(slow, name) >= getattr(fast, name)
        for name in ("floor_ms", *TERMS, "edge_ms", "least_rows_ms")
    )
