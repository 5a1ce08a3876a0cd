"""Cuts prompts for a cluster and says what that would give. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Self

import numpy as np

from chunkmesh.errors import InvariantViolated
from scheduler.planning.cluster import Cluster, PromptLoad, closing_chunks
from scheduler.planning.communication import equal_bubble_ratio
from scheduler.planning.cuts import ChunkSettings, Cuts, Strategy, cut_prompts
from scheduler.planning.rehearsal import can_rehearse, rehearse
from scheduler.simulator import Simulation


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One strategy on one cluster for prompts of one length."""

    cluster: Cluster
    load: PromptLoad
    cuts: Cuts
    ttft_ms: float
    """From the arrival of all prompts to the first token of the first one."""
    finish_ms: float
    """To the first token of the last one."""
    bubble_ratio: float
    """Share of all stages' time, from first start to last end, without compute; in [0, 1)."""
    simulation: Simulation | None
    """What was seen; None if it was computed because it is too large to simulate."""

    @classmethod
    def simulated(cls, cluster: Cluster, load: PromptLoad, cuts: Cuts, page_tokens: int) -> Self:
        """Run the cuts through the live engine on a fake clock."""
        simulation = rehearse(cluster, load, cuts.ends, page_tokens)
        for request in simulation.requests:
            if request.error is not None or not request.token_times_s:
                raise InvariantViolated(f"{request.spec.request_id} had no end: {request.error}")
        return cls(
            cluster=cluster,
            load=load,
            cuts=cuts,
            ttft_ms=1000 * simulation.requests[0].ttft_s,
            finish_ms=1000 * max(request.ttft_s for request in simulation.requests),
            bubble_ratio=simulation.bubble_ratio,
            simulation=simulation,
        )

    @classmethod
    def computed(cls, cluster: Cluster, load: PromptLoad, cuts: Cuts) -> Self:
        """Work out when each chunk leaves each stage, one chunk a microbatch."""
        ended_ms, times_ms = cluster.times_ms(cuts.ends)
        finish_ms = float(ended_ms[-1, -1])
        return cls(
            cluster=cluster,
            load=load,
            cuts=cuts,
            ttft_ms=float(ended_ms[-1, closing_chunks(cuts.ends)[0]]),
            finish_ms=finish_ms,
            bubble_ratio=max(0.0, float(1 - times_ms.sum() / (cluster.num_stages * finish_ms))),
            simulation=None,
        )

    @property
    def chunk_tokens(self) -> tuple[int, ...]:
        """Sizes of the first prompt's chunks."""
        return tuple(b - a for a, b in itertools.pairwise((0, *self.cuts.ends[0])))

    @property
    def largest_chunk_tokens(self) -> int:
        """What the stages' buffers must hold."""
        return max(int(np.diff(own, prepend=0).max()) for own in self.cuts.ends)

    @property
    def throughput_tokens_s(self) -> float:
        """Prompt tokens a second, until the last prompt is through."""
        return 1000 * self.load.total_tokens / self.finish_ms

    @property
    def speedup(self) -> float:
        """How many times faster it is than the best plan on one stage."""
        return self.cluster.single_stage_ms(self.load) / self.finish_ms

    @property
    def efficiency(self) -> float:
        """Share of the stages that the speed-up is."""
        return self.speedup / self.cluster.num_stages

    @property
    def equal_bubble_ratio(self) -> float:
        """What the bubble would be if all microbatches took the same time."""
        return equal_bubble_ratio(self.cluster.num_stages, self.cuts.num_chunks)


def make_plan(
    strategy: Strategy,
    cluster: Cluster,
    load: PromptLoad,
    settings: ChunkSettings,
    *,
    simulate: bool = True,
) -> Plan:
    """Cut prompts and simulate them, or compute the same if not asked to or if they are too many.

    Raises:
        ConfigError: chunks would be too many to plan.
    """
    cuts = cut_prompts(strategy, cluster, load, settings)
    if simulate and can_rehearse(cluster, load, cuts.ends, settings.page_tokens):
        return Plan.simulated(cluster, load, cuts, settings.page_tokens)
    return Plan.computed(cluster, load, cuts)
