"""Stages of the simulator that take what a latency model says, and requests in front of them."""

from __future__ import annotations

import dataclasses

import numpy as np

from scheduler.actions import Action, Progress, SendMicrobatch
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import Event, RouteFormed
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.simulator import Arrival, Simulation, Simulator
from scheduler.size_ratios import SizeRatios
from tests.layer_table import NUM_LAYERS, OVERHEAD_MS
from tests.specs import make_spec

H200_LAYER = StageLatency(
    floor_ms=0.6892,
    ms_per_token=6.3356e-4,
    ms_per_pair=1.33311e-8,
    size_ratios=SizeRatios(
        tokens=(512, 1024, 2048, 4096, 8192, 16_384),
        ratios=(0.967, 0.997, 1.002, 1.007, 1.022, 1.006),
    ),
)
"""Fit of the measured layer (layer_table.py)."""
CONFIG = EngineConfig(
    page_tokens=128,
    chunked_prefill_tokens=8192,
    max_running_requests=256,
    max_queued_requests=4096,
    load_timeout_s=10.0,
    max_outstanding_stores=0,
    max_chunk_ms=500.0,
)
_PAGES = 1 << 14


def h200_pipeline(num_stages: int) -> PipelineLatency:
    """Return equal stages of Qwen3-8B's 36 layers."""
    stage = H200_LAYER.of_layers(NUM_LAYERS // num_stages).with_overhead(OVERHEAD_MS)
    return PipelineLatency((stage,) * num_stages)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelTimes:
    """What stages really take; links take nothing."""

    latency: PipelineLatency

    def compute_s(self, stage: int, microbatch: SendMicrobatch) -> float:
        """Ask the model."""
        return self.latency.stages[stage].microbatch_ms(work_of_microbatch(microbatch)) / 1000

    def send_s(self, _stage: int, _microbatch: SendMicrobatch) -> float:
        """Nothing."""
        return 0.0


def work_of_microbatch(microbatch: SendMicrobatch) -> Work:
    """Return what a microbatch asks of a stage; a sampled token by itself is a decode row."""
    sampled = {sample.entry for sample in microbatch.samples}
    work = Work()
    for index, entry in enumerate(microbatch.entries):
        end = entry.start + entry.num_tokens
        if entry.num_tokens == 1 and entry.start and index in sampled:
            work += Work.of_rows([end])
        else:
            work += Work.of_chunk(entry.start, end)
    return work


def arrival(
    name: str,
    prompt_tokens: int,
    *,
    at_s: float = 0.0,
    new: int = 1,
    priority: int = 0,
    page_tokens: int = 1 << 20,
) -> Arrival:
    """Return a request; all prompts are zeros. With the pages of an engine they may be found."""
    spec = make_spec(
        name,
        np.zeros(prompt_tokens, dtype=np.uint32),
        max_new_tokens=new,
        page_tokens=page_tokens,
        priority=priority,
    )
    return Arrival(at_s=at_s, spec=spec)


def simulate(
    arrivals: list[Arrival],
    true: PipelineLatency,
    *,
    config: EngineConfig = CONFIG,
    known: PipelineLatency | None,
) -> Simulation:
    """Serve requests on stages of a true latency, planned with a known one, if any."""
    route = RouteFormed(epoch=1, num_stages=true.num_stages, num_pages=_PAGES, latency=known)
    return Simulator(Engine(config), route, ModelTimes(true)).run(arrivals)


class _Watched(Engine):
    """Keeps what it tells of prompts."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.told: list[tuple[float, Progress]] = []

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Note when what was told."""
        actions = super().handle(event, now_s)
        self.told += [(now_s, action) for action in actions if isinstance(action, Progress)]
        return actions


def watch(
    arrivals: list[Arrival], latency: PipelineLatency, *, config: EngineConfig = CONFIG
) -> list[tuple[float, Progress]]:
    """Serve requests; return what is told of their prompts, and when."""
    engine = _Watched(config)
    route = RouteFormed(epoch=1, num_stages=latency.num_stages, num_pages=_PAGES, latency=latency)
    Simulator(engine, route, ModelTimes(latency)).run(arrivals)
    return engine.told
