"""What the simulator says of more stages than were measured, by the latencies of those that were.

Each measured stage's time is spread over its layers, and the model is cut evenly anew. The engine
is the live one, on a fake clock. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from chunkmesh.layers import LayerRange, partition
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.engine import Engine
from scheduler.events import RouteFormed
from scheduler.latency_file import LatencyFile, SavedStage
from scheduler.latency_model import PipelineLatency
from scheduler.latency_terms import told_latency
from scheduler.pipeline_time import LinkTime
from scheduler.planning.model_latency import ModelLatency
from scheduler.simulator import Simulator
from tests.model_times import CONFIG, ModelTimes, arrival


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How the prompt is cut."""

    chunk_tokens: int
    """Of fixed chunks, and the most of others."""
    is_planned: bool
    """As optimal; else fixed."""
    alignment_tokens: int = 1
    """What planned chunks are multiples of."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One prompt that is alone."""

    num_chunks: int
    ttft_s: float


def told_model(fits: Sequence[pb.StageFit]) -> ModelLatency | None:
    """Return what the layers take by a route's fits, refused or not; None if one is missing."""
    if not fits or not all(fit.HasField("terms") for fit in fits):
        return None
    stages = tuple(
        SavedStage.of(
            LayerRange(first=fit.layers.first, last=fit.layers.last), told_latency(fit.terms)
        )
        for fit in fits
    )
    return ModelLatency.of_file(LatencyFile(model="measured", device="measured", stages=stages))


def link_latency_s(workers: Sequence[pb.WorkerInfo]) -> float:
    """Return one way of the slowest link; 0 without any."""
    trips_us = [each.outbound.rtt_us for each in workers if each.HasField("outbound")]
    return max(trips_us, default=0) / 2e6


def predicted(latency: PipelineLatency, prompt_tokens: int, cuts: Cuts, link_s: float) -> Predicted:
    """Run a prompt that is alone; link_s is how long an activation travels."""
    config = dataclasses.replace(
        CONFIG, chunked_prefill_tokens=cuts.chunk_tokens, max_chunk_ms=None
    )
    route = RouteFormed(
        epoch=1,
        num_stages=latency.num_stages,
        num_pages=prompt_tokens // CONFIG.page_tokens + 16,
        latency=latency if cuts.is_planned else None,
        chunk_alignment_tokens=cuts.alignment_tokens,
        link=LinkTime(latency_ms=1000 * link_s),
    )
    simulator = Simulator(Engine(config), route, ModelTimes(latency), link_latency_s=link_s)
    simulation = simulator.run([arrival("alone", prompt_tokens)])
    (request,) = simulation.requests
    return Predicted(num_chunks=len(simulation.microbatches), ttft_s=request.ttft_s)


def cut(model: ModelLatency, num_stages: int) -> PipelineLatency:
    """Return the pipeline of an even split."""
    return model.pipeline(partition(model.num_layers, num_stages))
