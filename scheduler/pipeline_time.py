"""When chunks leave a pipeline of unequal stages and links. Pure; judges plans.

A stage serves microbatches in order and one at a time, and so does a link; sending overlaps the
computing of the next. So finish[s][i] = max(finish[s][i-1], arrival[s][i]) + time[s][i].
Microbatches wait in unbounded queues here; the in-flight window is the simulator's concern.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from scheduler.latency_model import FloatArray, PipelineLatency


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkTime:
    """How long an activation travels to the next stage."""

    latency_ms: float = 0.0
    """From the end of a send to the arrival; does not keep the link busy. >= 0."""
    ms_per_token: float = 0.0
    """Bytes of a token's activation over the link's bandwidth; keeps the link busy. >= 0."""

    @classmethod
    def of_bandwidth(
        cls, *, latency_ms: float, bytes_per_token: int, bytes_per_s: float
    ) -> LinkTime:
        """Return the link of a bandwidth, > 0, for activations of bytes_per_token."""
        return cls(latency_ms=latency_ms, ms_per_token=1000 * bytes_per_token / bytes_per_s)


NO_LINK = LinkTime()
"""Activations arrive at once."""


def chunk_times_ms(latency: PipelineLatency, starts: FloatArray, ends: FloatArray) -> FloatArray:
    """Return the times of chunks on each stage: [stages, chunks]."""
    times_ms = {stage: stage.chunks_ms(starts, ends) for stage in dict.fromkeys(latency.stages)}
    return np.stack([times_ms[stage] for stage in latency.stages])


def finish_times_ms(
    times_ms: FloatArray, tokens: FloatArray, link: LinkTime = NO_LINK
) -> FloatArray:
    """Return when each chunk is finished on each stage, from the start of the first.

    Args:
        times_ms: [stages, chunks], in the order in which the chunks enter.
        tokens: [chunks], what crosses the links.
        link: the same between all stages.

    Returns:
        [stages, chunks]; the last of the last row is the time of the whole.
    """
    finish_ms = np.empty_like(times_ms)
    arrival_ms = np.zeros(times_ms.shape[1])
    busy_ms = tokens * link.ms_per_token
    for stage, stage_ms in enumerate(times_ms):
        finish_ms[stage] = _serve(arrival_ms, stage_ms)
        sent_ms = _serve(finish_ms[stage], busy_ms) if link.ms_per_token else finish_ms[stage]
        arrival_ms = sent_ms + link.latency_ms
    return finish_ms


def plan_finish_ms(
    latency: PipelineLatency, starts: FloatArray, ends: FloatArray, link: LinkTime = NO_LINK
) -> float:
    """Return when the last of these chunks, which may be of several prompts, leaves."""
    times_ms = chunk_times_ms(latency, starts, ends)
    return float(finish_times_ms(times_ms, ends - starts, link)[-1, -1])


def _serve(ready_ms: FloatArray, busy_ms: FloatArray) -> FloatArray:
    """Return when one server ends each job: max(end of the one before, ready) + busy."""
    served_ms = np.cumsum(busy_ms)
    waited_ms: FloatArray = np.maximum.accumulate(ready_ms - (served_ms - busy_ms))
    return served_ms + waited_ms
