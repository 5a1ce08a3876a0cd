"""How long the engine thinks: `python -m tests.bench.engine`.

Two stages that answer at once, in the order of sending, and tell the times that were predicted.
For each chunk strategy 1, 64 and 256 requests at once, of 4000 prompt tokens and 100 more each, and
prompts of 250,000 and 1,000,000 tokens alone, for which optimal searches a slot. Three runs each,
the best is shown: other processes only ever add time.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from unittest import mock

import numpy as np

from scheduler.actions import MatchPrefix, SendMicrobatch
from scheduler.chunk_optimal import OptimalChunks
from scheduler.engine import Engine
from scheduler.engine_config import CHUNK_STRATEGIES, ChunkStrategyName, EngineConfig
from scheduler.events import Acked, Arrived, Event, Matched, RequestSpec, RouteFormed
from scheduler.slot_search import SlotPlan
from tests.model_times import h200_pipeline
from tests.specs import make_spec

_NUM_STAGES = 2
_PAGE_TOKENS = 16
_LATENCY = h200_pipeline(_NUM_STAGES)


@dataclasses.dataclass(slots=True)
class _Cost:
    """What a load took inside handle."""

    num_events: int = 0
    num_microbatches: int = 0
    spent_s: float = 0.0
    longest_s: float = 0.0
    searches_s: list[float] = dataclasses.field(default_factory=list)
    """CPU time of each search for a slot."""


def _serve(specs: list[RequestSpec], strategy: ChunkStrategyName) -> _Cost:
    """Serve requests to their end; every token is 1."""
    config = EngineConfig(
        page_tokens=_PAGE_TOKENS,
        chunked_prefill_tokens=2048,
        max_running_requests=256,
        max_queued_requests=256,
        load_timeout_s=1.0,
        max_outstanding_stores=0,
        chunk_strategy=strategy,
    )
    engine = Engine(config)
    num_pages = sum(len(spec.prompt_ids) + spec.max_new_tokens for spec in specs) // _PAGE_TOKENS
    route = RouteFormed(
        epoch=1, num_stages=_NUM_STAGES, num_pages=num_pages + 512, latency=_LATENCY
    )
    engine.handle(route, 0.0)
    cost = _Cost()
    events: deque[Event] = deque(Arrived(spec=spec) for spec in specs)
    while events:
        begin = time.perf_counter()
        actions = engine.handle(events.popleft(), begin)
        took_s = time.perf_counter() - begin
        cost.num_events += 1
        cost.spent_s += took_s
        cost.longest_s = max(cost.longest_s, took_s)
        for action in actions:
            if isinstance(action, SendMicrobatch):
                cost.num_microbatches += 1
                events += _acks(action)
            elif isinstance(action, MatchPrefix):
                name = action.request_id
                events.append(Matched(request_id=name, num_pages=0, lease_id=None))
    if not engine.is_idle():
        raise SystemExit("the engine is not at rest")
    return cost


def _acks(microbatch: SendMicrobatch) -> list[Event]:
    """Return what the stages say of a microbatch."""
    ids = (1,) * len(microbatch.samples)
    return [
        Acked(
            epoch=1,
            stage=stage,
            seq_no=microbatch.seq_no,
            compute_ms=ms,
            sampled_ids=ids if stage == _NUM_STAGES - 1 else (),
        )
        for stage, ms in enumerate(microbatch.predicted_ms)
    ]


def _measured(specs: list[RequestSpec], strategy: ChunkStrategyName) -> _Cost:
    """Serve requests and time the searches among it."""
    searches_s: list[float] = []

    def cut_all(self: OptimalChunks, ranges: list[tuple[int, int]]) -> SlotPlan:
        begin = time.process_time()
        plan = search(self, ranges)
        searches_s.append(time.process_time() - begin)
        return plan

    search = OptimalChunks.cut_all
    with mock.patch.object(OptimalChunks, "cut_all", cut_all):
        cost = _serve(specs, strategy)
    cost.searches_s = searches_s
    return cost


def _show(name: str, costs: list[_Cost]) -> None:
    """Print the best of some runs."""
    best = min(costs, key=lambda cost: cost.spent_s)
    worst_s = max(cost.spent_s for cost in costs)
    searches = ""
    if best.searches_s:
        searches = (
            f"   {len(best.searches_s)} searches, {max(best.searches_s) * 1e3:.0f} ms at most"
        )
    print(
        f"{name:<36}{best.num_microbatches:>7} microbatches"
        f"{best.num_microbatches / best.spent_s:>8.0f} /s"
        f"{best.spent_s / best.num_events * 1e6:>8.1f} us a handle"
        f"{best.longest_s * 1e3:>8.2f} ms the longest"
        f"   spread {worst_s / best.spent_s:.2f}x{searches}"
    )


def main() -> None:
    """Print one line for each load and strategy."""
    for num_requests in (1, 64, 256):
        for strategy in CHUNK_STRATEGIES:
            prompt = np.zeros(4000, dtype=np.uint32)
            specs = [
                make_spec(f"r{index}", prompt, max_new_tokens=100, page_tokens=_PAGE_TOKENS)
                for index in range(num_requests)
            ]
            costs = [_measured(specs, strategy) for _ in range(3)]
            _show(f"{num_requests} of 4000 + 100, {strategy}", costs)
    for num_tokens in (250_000, 1_000_000):
        for strategy in CHUNK_STRATEGIES:
            specs = [make_spec("long", np.zeros(num_tokens, dtype=np.uint32))]
            _show(
                f"{num_tokens} tokens, {strategy}", [_measured(specs, strategy) for _ in range(3)]
            )


if __name__ == "__main__":
    main()
