"""How long the engine thinks: `python -m tests.bench scheduler`, or `python -m tests.bench.engine`.

Two stages that answer at once, in the order of sending, and tell the times that were predicted.
For each chunk strategy 1, 16, 64 and 256 requests at once, of 4000 prompt tokens and 100 more each;
by itself also prompts of 250,000 and 1,000,000 tokens alone, for which optimal searches a slot. CPU
time is taken, so that other processes hardly count; of several runs the best is shown.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from pathlib import Path
from unittest import mock

import numpy as np

from scheduler.actions import MatchPrefix, SendMicrobatch
from scheduler.chunk_optimal import OptimalChunks
from scheduler.engine import Engine
from scheduler.engine_config import CHUNK_STRATEGIES, ChunkStrategyName, EngineConfig
from scheduler.events import Acked, Arrived, Event, Matched, RequestSpec, RouteFormed
from scheduler.slot_plan import SlotPlan
from tests.bench import planning_time
from tests.bench.measure import table
from tests.model_times import h200_pipeline
from tests.specs import make_spec

_NUM_STAGES = 2
_PAGE_TOKENS = 16
_LATENCY = h200_pipeline(_NUM_STAGES)
_NUM_REQUESTS = (1, 16, 64, 256)
_PROMPT_TOKENS = 4000
_NEW_TOKENS = 100
_NUM_RUNS = 3


@dataclasses.dataclass(slots=True)
class _Cost:
    """What a load took inside handle, in CPU time."""

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
        now_s, begin_s = time.perf_counter(), time.thread_time()
        actions = engine.handle(events.popleft(), now_s)
        took_s = time.thread_time() - begin_s
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


def _live(num_requests: int) -> list[RequestSpec]:
    """Return requests that are all there at once."""
    prompt = np.zeros(_PROMPT_TOKENS, dtype=np.uint32)
    return [
        make_spec(f"r{index}", prompt, max_new_tokens=_NEW_TOKENS, page_tokens=_PAGE_TOKENS)
        for index in range(num_requests)
    ]


def planned(_model_path: Path, *, rounds: int) -> str:
    """Measure how many microbatches are planned a second, all work counted, and what plans take."""
    rows = []
    for num_requests in _NUM_REQUESTS:
        rates: dict[ChunkStrategyName, list[float]] = {name: [] for name in CHUNK_STRATEGIES}
        for _ in range(rounds):
            for strategy, taken in rates.items():
                cost = _serve(_live(num_requests), strategy)
                taken.append(cost.num_microbatches / cost.spent_s)
        cells = [f"{max(taken):.0f} ({min(taken):.0f})" for taken in rates.values()]
        rows.append([str(num_requests), *cells])
    rates_table = table(
        f"Microbatches planned a second of CPU time, best (worst) of {rounds} runs, {_NUM_STAGES}"
        f" stages, requests of {_PROMPT_TOKENS} + {_NEW_TOKENS} tokens",
        ["live requests", *CHUNK_STRATEGIES],
        rows,
    )
    return f"{rates_table}\n{planning_time.planned()}"


def main() -> None:
    """Print one line for each load and strategy."""
    for num_requests in _NUM_REQUESTS:
        for strategy in CHUNK_STRATEGIES:
            costs = [_measured(_live(num_requests), strategy) for _ in range(_NUM_RUNS)]
            _show(f"{num_requests} of {_PROMPT_TOKENS} + {_NEW_TOKENS}, {strategy}", costs)
    for num_tokens in (250_000, 1_000_000):
        for strategy in CHUNK_STRATEGIES:
            specs = [make_spec("long", np.zeros(num_tokens, dtype=np.uint32))]
            costs = [_measured(specs, strategy) for _ in range(_NUM_RUNS)]
            _show(f"{num_tokens} tokens, {strategy}", costs)


if __name__ == "__main__":
    main()
