"""What a mesh adds to the computing of a stage, out of a request's timeline. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageGaps:
    """One stage, from the begin of its first microbatch to the end of its last one."""

    num_microbatches: int
    wall_ms: float
    compute_ms: float
    """Sum of what the device took for each."""
    median_gap_ms: float
    """Between two microbatches; ends are seen some 0.1 ms late, so one may be below 0."""
    p90_gap_ms: float

    @property
    def overhead_ms(self) -> float:
        """What a microbatch costs beside computing it; behind the first stage also its input."""
        return (self.wall_ms - self.compute_ms) / self.num_microbatches


def stage_gaps(timeline: Sequence[pb.MicrobatchTiming]) -> list[StageGaps]:
    """Look at each stage; a timeline of at least two microbatches, in their order."""
    found = []
    for runs in zip(*(each.stages for each in timeline), strict=True):
        gaps_us = [
            after.start_us - before.start_us - before.compute_us
            for before, after in itertools.pairwise(runs)
        ]
        found.append(
            StageGaps(
                num_microbatches=len(runs),
                wall_ms=(runs[-1].start_us + runs[-1].compute_us - runs[0].start_us) / 1000,
                compute_ms=sum(run.compute_us for run in runs) / 1000,
                median_gap_ms=statistics.median(gaps_us) / 1000,
                p90_gap_ms=sorted(gaps_us)[len(gaps_us) * 9 // 10] / 1000,
            )
        )
    return found
