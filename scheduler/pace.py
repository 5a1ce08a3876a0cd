"""What the stages of a route take: as modelled, as they tell, and modelled anew. Pure.

Every microbatch is predicted if there is a model, whatever cuts the chunks. The times in
acknowledgements refit each stage's latency; refits are looked at together, when the last stage has
acknowledged, so that plans change once for all stages.
"""

from __future__ import annotations

from collections import deque

from scheduler.chunk_choice import is_plannable
from scheduler.engine_config import EngineConfig
from scheduler.events import Acked, RouteFormed
from scheduler.latency_model import PipelineLatency, Work
from scheduler.latency_refit import LatencyRefit
from scheduler.pipeline_use import PipelineUse


class Pace:
    """Owner of a route's latency."""

    def __init__(self, formed: RouteFormed, config: EngineConfig) -> None:
        """Begin with the route's latency, if it is known."""
        self.latency = formed.latency
        self.use = PipelineUse(formed.num_stages)
        self.num_refits = [0] * formed.num_stages
        """How often each stage's latency was replaced."""
        self._refits = [
            LatencyRefit(
                stage,
                max_chunk_tokens=config.chunked_prefill_tokens,
                max_prefix_tokens=formed.num_pages * config.page_tokens,
                max_rows=config.max_running_requests,
            )
            for stage in (formed.latency.stages if formed.latency else ())
        ]
        self._num_acked = [0] * formed.num_stages
        self._works: deque[Work] = deque()
        """Of microbatches that some stage has not acknowledged, in the order of sending."""
        self._num_complete = 0

    def sent(self, work: Work, now_s: float) -> tuple[float, ...]:
        """Note a microbatch; return what each stage should take, in ms, if that is known."""
        self.use.sent(now_s)
        self._works.append(work)
        return (
            tuple(stage.microbatch_ms(work) for stage in self.latency.stages)
            if self.latency
            else ()
        )

    def acked(self, acked: Acked, now_s: float) -> bool:
        """Take a stage's time for its next microbatch; return whether the latency was replaced."""
        stage = acked.stage
        work = self._works[self._num_acked[stage] - self._num_complete]
        self._num_acked[stage] += 1
        self.use.acked(stage, acked.compute_ms, now_s)
        while self._num_complete < min(self._num_acked):
            self._works.popleft()
            self._num_complete += 1
        if not self._works:
            self.use.rest()
        if self._refits and acked.compute_ms > 0:
            self._refits[stage].observe(work, acked.compute_ms)
        return stage == len(self._num_acked) - 1 and self._refit(now_s)

    def _refit(self, now_s: float) -> bool:
        """Take the fits that differ; none with which nothing could be planned."""
        fitted = [refit.refitted(now_s) for refit in self._refits]
        if not any(fitted):
            return False
        latency = PipelineLatency(tuple(refit.latency for refit in self._refits))
        if not is_plannable(latency):
            return False
        for stage, latency_of_stage in enumerate(fitted):
            self.num_refits[stage] += latency_of_stage is not None
        self.latency = latency
        return True
