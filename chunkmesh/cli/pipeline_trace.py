"""Several requests on one clock: what every stage did when, each microbatch once. Pure.

Made of what GetTimelines tells, for the trace file, the picture and the text of `chunkmesh trace`.
All times are whole microseconds since the first of the requests arrived. On one stage nothing
overlaps: stages tell start and duration, each rounded, so ends are cut where the next one begins.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Self

from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a microbatch carries of one request."""

    request: int
    """Index in PipelineTrace.requests."""
    start: int
    """First position."""
    num_tokens: int
    chunk: int | None
    """Which chunk of its prompt, from 0; None for a decode step."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedMicrobatch:
    """A microbatch that carried something of the requests."""

    epoch: int
    seq_no: int
    num_tokens: int
    """Of all requests, also of those that are not in the trace."""
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One microbatch on one stage; 0 <= ready_us <= start_us <= end_us <= sent_us."""

    microbatch: TracedMicrobatch
    stage: int
    ready_us: int
    """When the stage began to wait for it."""
    start_us: int
    end_us: int
    """End of compute."""
    sent_us: int
    """When the activation had left; end_us on the last stage."""
    predicted_us: int | None
    """Compute time that the latency model expected; None without a model."""

    @property
    def compute_us(self) -> int:
        """Time that it computed."""
        return self.end_us - self.start_us


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request as a whole."""

    told: pb.GetTimelinesResponse
    arrived_us: int
    first_token_us: int | None
    ended_us: int | None
    """None while it runs."""

    @property
    def headline(self) -> str:
        """One line that says what happened."""
        told = self.told
        first_token = (
            "no token yet"
            if self.first_token_us is None
            else f"first token after {(self.first_token_us - self.arrived_us) / 1e6:.3f} s"
        )
        return (
            f"{told.request_id}: {told.prompt_tokens} tokens, {told.cached_tokens} cached,"
            f" {first_token}, {told.output_tokens} output tokens, {told.finish_reason or 'running'}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTrace:
    """Requests by arrival, and the runs of all stages."""

    requests: tuple[TracedRequest, ...]
    runs: tuple[StageRun, ...]
    """By stage, then in order of time."""

    @classmethod
    def of(cls, told: Sequence[pb.GetTimelinesResponse]) -> Self:
        """Join what was told of some requests."""
        by_arrival = sorted(told, key=lambda each: each.arrived_us)
        zero_us = by_arrival[0].arrived_us if by_arrival else 0
        stages: dict[int, list[StageRun]] = {}
        for run in _runs(by_arrival, zero_us):
            stages.setdefault(run.stage, []).append(run)
        apart = (_apart(stages[stage]) for stage in sorted(stages))
        return cls(
            requests=tuple(_request(each, zero_us) for each in by_arrival),
            runs=tuple(itertools.chain.from_iterable(apart)),
        )

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline, as far as they have told anything."""
        return max((run.stage + 1 for run in self.runs), default=0)

    @property
    def end_us(self) -> int:
        """When the last of it ended."""
        ends_us = [request.ended_us or 0 for request in self.requests]
        return max([run.sent_us for run in self.runs] + ends_us, default=0)

    def prefill_us(self, request: int) -> tuple[int, int] | None:
        """Return first start and last end of the chunks of a request; None without one."""
        spans = [
            (run.start_us, run.end_us)
            for run in self.runs
            for part in run.microbatch.parts
            if part.request == request and part.chunk is not None
        ]
        return (min(spans)[0], max(end for _, end in spans)) if spans else None

    def bubble_ratio(self, from_us: int, to_us: int) -> float:
        """Return the share of some time in which stages compute nothing of these requests."""
        busy_us = sum(
            max(0, min(run.end_us, to_us) - max(run.start_us, from_us)) for run in self.runs
        )
        whole_us = self.num_stages * (to_us - from_us)
        return 1 - busy_us / whole_us if whole_us > 0 else 0.0


def _request(told: pb.GetTimelinesResponse, zero_us: int) -> TracedRequest:
    arrived_us = told.arrived_us - zero_us
    return TracedRequest(
        told=told,
        arrived_us=arrived_us,
        first_token_us=arrived_us + told.first_token_us
        if told.HasField("first_token_us")
        else None,
        ended_us=arrived_us + told.ended_us if told.HasField("ended_us") else None,
    )


def _runs(by_arrival: Sequence[pb.GetTimelinesResponse], zero_us: int) -> Iterable[StageRun]:
    """Yield each microbatch once a stage, whichever requests it carries."""
    parts: dict[tuple[int, int], list[Part]] = {}
    timings: dict[tuple[int, int], tuple[pb.MicrobatchTiming, int]] = {}
    for index, told in enumerate(by_arrival):
        num_chunks = 0
        for timing in sorted(told.microbatches, key=lambda each: (each.epoch, each.seq_no)):
            key = (timing.epoch, timing.seq_no)
            is_chunk = timing.start < told.prompt_tokens
            part = Part(
                request=index,
                start=timing.start,
                num_tokens=timing.num_tokens,
                chunk=num_chunks if is_chunk else None,
            )
            num_chunks += is_chunk
            parts.setdefault(key, []).append(part)
            timings.setdefault(key, (timing, told.arrived_us - zero_us))
    for (epoch, seq_no), (timing, arrived_us) in timings.items():
        microbatch = TracedMicrobatch(
            epoch=epoch,
            seq_no=seq_no,
            num_tokens=timing.microbatch_tokens,
            parts=tuple(parts[epoch, seq_no]),
        )
        for stage in timing.stages:
            yield _run(microbatch, stage, timing.predicted_us, arrived_us)


def _run(
    microbatch: TracedMicrobatch,
    timing: pb.StageTiming,
    predicted_us: Sequence[int],
    arrived_us: int,
) -> StageRun:
    start_us = max(0, arrived_us + timing.start_us)
    end_us = max(start_us, arrived_us + timing.start_us + timing.compute_us)
    return StageRun(
        microbatch=microbatch,
        stage=timing.stage_index,
        ready_us=max(0, start_us - timing.wait_us),
        start_us=start_us,
        end_us=end_us,
        sent_us=end_us + timing.send_us,
        predicted_us=predicted_us[timing.stage_index] if predicted_us else None,
    )


def _apart(runs: list[StageRun]) -> Iterable[StageRun]:
    """Yield the runs of one stage in order, cut so that neither computes nor sends overlap."""
    runs.sort(key=lambda run: (run.start_us, run.microbatch.epoch, run.microbatch.seq_no))
    starts_us = [*(run.start_us for run in runs[1:]), None]
    ends_us = [
        run.end_us if next_us is None else min(run.end_us, next_us)
        for run, next_us in zip(runs, starts_us, strict=True)
    ]
    befores_us = [0, *ends_us]
    for index, (run, end_us) in enumerate(zip(runs, ends_us, strict=True)):
        sent_us = max(run.sent_us, end_us)
        if index + 1 < len(runs):
            sent_us = min(sent_us, ends_us[index + 1])
        yield dataclasses.replace(
            run,
            ready_us=min(max(run.ready_us, befores_us[index]), run.start_us),
            end_us=end_us,
            sent_us=sent_us,
        )
