"""A pipeline that may not exist yet, and the prompts that it shall take. Pure values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Self

import numpy as np

from chunkmesh.layers import LayerRange
from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_model import FloatArray, IntArray, PipelineLatency, StageLatency
from scheduler.pipeline_time import LinkTime, chunk_times_ms, finish_times_ms
from scheduler.planning.model_latency import ModelLatency
from scheduler.window_time import windowed_finish_ms

Ends = Sequence[int]
"""Of one prompt's chunks: ascending, the last is the prompt's length."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptLoad:
    """Prompts of one length that arrive together."""

    prompt_tokens: int
    """>= 1."""
    num_requests: int = 1
    """>= 1."""

    @property
    def total_tokens(self) -> int:
        """Tokens of all prompts."""
        return self.prompt_tokens * self.num_requests


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Stages, links and what they take."""

    ranges: tuple[LayerRange, ...]
    """The layers of each stage, tiling the model."""
    stages: PipelineLatency
    """Of these ranges."""
    head_ms: float
    """More on the last stage for a microbatch that ends a prompt."""
    single: StageLatency
    """One stage with all layers."""
    link: LinkTime
    pp_async_batch_depth: int = 0
    """As the engine's: what the in-flight window has beyond num_stages + 1."""

    @classmethod
    def of(
        cls,
        latency: ModelLatency,
        ranges: Sequence[LayerRange],
        link: LinkTime,
        *,
        pp_async_batch_depth: int = 0,
    ) -> Self:
        """Cut a model into stages."""
        return cls(
            ranges=tuple(ranges),
            stages=latency.pipeline(ranges),
            head_ms=latency.edges.head_ms,
            single=latency.whole(),
            link=link,
            pp_async_batch_depth=pp_async_batch_depth,
        )

    @property
    def num_stages(self) -> int:
        """Stages, >= 1."""
        return len(self.ranges)

    @property
    def window(self) -> int:
        """Most microbatches in the pipeline, as EngineConfig.window has it."""
        return max(1, self.num_stages + 1 + self.pp_async_batch_depth)

    def single_stage_ms(self, load: PromptLoad) -> float:
        """Return the least that one stage with all layers takes."""
        least_ms = _least_ms(self.single, load.prompt_tokens)
        return load.num_requests * (least_ms + self.head_ms)

    def times_ms(self, ends: Sequence[Ends]) -> tuple[FloatArray, FloatArray]:
        """Return when each chunk of prompts in a row ends, and how long it takes.

        Both [stages, chunks].
        """
        tokens, times_ms = self._chunks(ends)
        return windowed_finish_ms(times_ms, tokens, self.link, window=self.window), times_ms

    def finish_ms(self, ends: Sequence[Ends]) -> float:
        """Return when the last of these prompts in a row is through."""
        return float(self.times_ms(ends)[0][-1, -1])

    def unbounded_finish_ms(self, ends: Sequence[Ends]) -> float:
        """Return the same without an in-flight window, much faster: never more."""
        tokens, times_ms = self._chunks(ends)
        return float(finish_times_ms(times_ms, tokens, self.link)[-1, -1])

    def least_finish_ms(self, ends: Sequence[Ends]) -> float:
        """Return what finish_ms is never less than, much faster.

        The time without an in-flight window, or that of every window-th chunk, of which one enters
        when the one before has left the last stage.
        """
        unbounded_ms = self.unbounded_finish_ms(ends)
        tokens, times_ms = self._chunks(ends)
        hops_ms = tokens * self.link.ms_per_token + self.link.latency_ms
        alone_ms = times_ms.sum(axis=0) + (self.num_stages - 1) * hops_ms
        padded_ms = np.pad(alone_ms, (0, -len(alone_ms) % self.window))
        return max(unbounded_ms, float(padded_ms.reshape(-1, self.window).sum(axis=0).max()))

    def _chunks(self, ends: Sequence[Ends]) -> tuple[FloatArray, FloatArray]:
        """Return the tokens of all chunks, and their times on each stage."""
        starts, stops, closing = _borders(ends)
        times_ms = chunk_times_ms(self.stages, starts, stops)
        times_ms[-1, closing] += self.head_ms
        return stops - starts, times_ms


@functools.lru_cache(maxsize=256)
def _least_ms(single: StageLatency, tokens: int) -> float:
    """Return the least that a prompt takes on one stage: one chunk, or many if sizes are better."""
    chunks = OptimalChunks(latency=PipelineLatency((single,)), page_tokens=1)
    return chunks.cut_all([(0, tokens)]).finish_ms


def closing_chunks(ends: Sequence[Ends]) -> IntArray:
    """Return which of the chunks, counted over all prompts, end one."""
    last: IntArray = np.cumsum([len(own) for own in ends]) - 1
    return last


def _borders(ends: Sequence[Ends]) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return starts and ends of all chunks, and which of them end a prompt."""
    stops = np.concatenate([np.asarray(own, dtype=np.float64) for own in ends])
    closing = closing_chunks(ends)
    starts = np.concatenate([[0.0], stops[:-1]])
    starts[closing[:-1] + 1] = 0.0
    return starts, stops, closing
