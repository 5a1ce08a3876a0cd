"""Runs a plan's cuts through the live engine on a fake clock. Pure.

The only place where planning touches the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from scheduler.actions import SendMicrobatch
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec, RouteFormed, Sampling
from scheduler.latency_model import Work
from scheduler.planning.cluster import Cluster, Ends, PromptLoad
from scheduler.simulator import Arrival, Simulation, Simulator

_MAX_TOKENS = 1 << 22
_MAX_PAGES = 1 << 18
_MAX_SPANS = 20_000
_NAMESPACE = bytes(32)
_GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


def can_rehearse(
    cluster: Cluster, load: PromptLoad, ends: Sequence[Ends], page_tokens: int
) -> bool:
    """Say whether it takes seconds at most; larger plans are computed instead."""
    num_spans = sum(map(len, ends)) * cluster.num_stages
    num_pages = load.total_tokens // page_tokens
    return load.total_tokens <= _MAX_TOKENS and num_pages <= _MAX_PAGES and num_spans <= _MAX_SPANS


def rehearse(
    cluster: Cluster, load: PromptLoad, ends: Sequence[Ends], page_tokens: int
) -> Simulation:
    """Let all prompts arrive at once, to be cut as planned, for one token each."""
    num_requests = load.num_requests
    config = EngineConfig(
        page_tokens=page_tokens,
        chunked_prefill_tokens=_largest(ends),
        max_running_requests=num_requests,
        max_queued_requests=num_requests,
        load_timeout_s=1.0,
        max_outstanding_stores=0,
        pp_async_batch_depth=cluster.pp_async_batch_depth,
    )
    pages = config.pages_for(load.prompt_tokens + 1) + 1
    route = RouteFormed(
        epoch=1, num_stages=cluster.num_stages, num_pages=num_requests * pages + num_requests
    )
    simulator = Simulator(
        Engine(config, chunks=_CutsInTurn(iter(ends))),
        route,
        _ClusterTimes(cluster),
        link_latency_s=cluster.link.latency_ms / 1000,
    )
    prompt_ids = np.zeros(load.prompt_tokens, dtype=np.uint32)
    digests = (_NAMESPACE,) * (load.prompt_tokens // page_tokens)
    return simulator.run(
        [
            Arrival(
                at_s=0.0,
                spec=RequestSpec(
                    request_id=f"prompt {index}",
                    prompt_ids=prompt_ids,
                    namespace=_NAMESPACE,
                    digests=digests,
                    max_new_tokens=1,
                    min_new_tokens=1,
                    end_ids=frozenset(),
                    sampling=_GREEDY,
                    texts=(_NoText(),),
                ),
            )
            for index in range(num_requests)
        ]
    )


def _largest(ends: Sequence[Ends]) -> int:
    """Return the tokens of the largest chunk."""
    return max(int(np.diff(own, prepend=0).max()) for own in ends)


@dataclasses.dataclass(slots=True)
class _CutsInTurn:
    """A ChunkStrategy that gives each prompt the cuts that were planned for it."""

    plans: Iterator[Ends]

    def cut(self, _start: int, _end: int) -> Ends:
        """Return the next prompt's; they are admitted in the order of the plan, without hits."""
        return next(self.plans)


@dataclasses.dataclass(frozen=True, slots=True)
class _ClusterTimes:
    """StageTimes of a cluster."""

    cluster: Cluster

    def compute_s(self, stage: int, microbatch: SendMicrobatch) -> float:
        """Return what all entries take together, and the head where a token is sampled."""
        work = Work()
        for entry in microbatch.entries:
            work += Work.of_chunk(entry.start, entry.start + entry.num_tokens)
        ms = self.cluster.stages.stages[stage].microbatch_ms(work)
        if microbatch.samples and stage == self.cluster.num_stages - 1:
            ms += self.cluster.head_ms
        return ms / 1000

    def send_s(self, _stage: int, microbatch: SendMicrobatch) -> float:
        """Return the time of its bytes."""
        return microbatch.num_tokens * self.cluster.link.ms_per_token / 1000


@dataclasses.dataclass(slots=True)
class _NoText:
    """A TextSink for output that nobody reads."""

    matched_stop: str | None = None

    def push(self, _token_id: int) -> str:
        """Return nothing."""
        return ""

    def flush(self) -> str:
        """Return nothing."""
        return ""
