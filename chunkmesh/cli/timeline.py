"""When each stage worked on which part of a request: plain values for text and picture. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self

from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One stage's part in one microbatch. Times in seconds since the request arrived."""

    stage_index: int
    ready_s: float
    """When the stage began to wait for this microbatch; 0 <= ready_s <= start_s."""
    start_s: float
    """Start of compute."""
    end_s: float
    """End of compute, >= start_s."""
    sent_s: float
    """When the activation had left, >= end_s; end_s on the last stage."""
    predicted_s: float | None = None
    """What the latency model expected of end_s - start_s; None without a model."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One microbatch that carried a part of the request."""

    start: int
    """First position."""
    num_tokens: int
    work: tuple[Work, ...]
    """By stage."""

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.num_tokens

    @property
    def end_s(self) -> float:
        """When its last stage was done."""
        return max((work.end_s for work in self.work), default=0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A whole request."""

    num_stages: int
    cached_tokens: int
    """Leading tokens that came from the cache."""
    chunks: tuple[Step, ...]
    """Prefill, in order."""
    decode: tuple[Step, ...]
    """Steps of one token each, in order."""

    @classmethod
    def of(cls, complete: pb.GenerateComplete) -> Self:
        """Read the timeline of a request that asked for it; empty if it did not."""
        return cls._read(complete.timeline, complete.prompt_tokens, complete.cached_tokens)

    @classmethod
    def of_told(cls, told: pb.GetTimelinesResponse) -> Self:
        """Read the timeline of a request that the scheduler remembers."""
        return cls._read(told.microbatches, told.prompt_tokens, told.cached_tokens)

    @classmethod
    def _read(
        cls, timings: Iterable[pb.MicrobatchTiming], prompt_tokens: int, cached_tokens: int
    ) -> Self:
        ordered = sorted(timings, key=lambda timing: (timing.epoch, timing.seq_no))
        steps = [_step(timing) for timing in ordered]
        return cls(
            num_stages=max(
                (work.stage_index + 1 for step in steps for work in step.work), default=0
            ),
            cached_tokens=cached_tokens,
            chunks=tuple(step for step in steps if step.start < prompt_tokens),
            decode=tuple(step for step in steps if step.start >= prompt_tokens),
        )

    @property
    def prefill_s(self) -> float:
        """When the last chunk left the last stage."""
        return max((step.end_s for step in self.chunks), default=0.0)

    @property
    def first_start_s(self) -> float:
        """When the first chunk's compute began."""
        return min((work.start_s for work in self.works(self.chunks)), default=0.0)

    @property
    def cache_s(self) -> float:
        """How long cached tokens were looked for and loaded before compute; 0 without any."""
        return self.first_start_s if self.cached_tokens else 0.0

    def busy_share(self, stage_index: int) -> float:
        """Return the share of prefill, from first start to last end, that a stage computes."""
        span_s = self.prefill_s - self.first_start_s
        works = [work for work in self.works(self.chunks) if work.stage_index == stage_index]
        busy_s = sum(work.end_s - work.start_s for work in works)
        return busy_s / span_s if span_s > 0 else 0.0

    @staticmethod
    def works(steps: Iterable[Step]) -> tuple[Work, ...]:
        """Return the work of all stages on some steps."""
        return tuple(work for step in steps for work in step.work)


def _step(timing: pb.MicrobatchTiming) -> Step:
    return Step(
        start=timing.start,
        num_tokens=timing.num_tokens,
        work=tuple(
            _work(stage, timing.predicted_us)
            for stage in sorted(timing.stages, key=lambda stage: stage.stage_index)
        ),
    )


def _work(timing: pb.StageTiming, predicted_us: Sequence[int]) -> Work:
    end_us = timing.start_us + timing.compute_us
    return Work(
        stage_index=timing.stage_index,
        ready_s=max(0, timing.start_us - timing.wait_us) / 1e6,
        start_s=max(0, timing.start_us) / 1e6,
        end_s=max(0, end_us) / 1e6,
        sent_s=max(0, end_us + timing.send_us) / 1e6,
        predicted_s=predicted_us[timing.stage_index] / 1e6 if predicted_us else None,
    )
