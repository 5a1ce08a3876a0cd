"""How long the engine thinks: `python -m tests.bench.engine`.

Two loads on two stages that answer at once: 64 requests that decode in two groups, and prompts of
250,000 and 1,000,000 tokens in chunks of 512, alone. Three runs each, the best is shown: other
processes only ever add time.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque

import numpy as np

from scheduler.actions import MatchPrefix, SendMicrobatch
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import Acked, Arrived, Event, Matched, RequestSpec, RouteFormed
from tests.specs import make_spec

_NUM_STAGES = 2
_CONFIG = EngineConfig(
    page_tokens=16,
    chunked_prefill_tokens=512,
    max_running_requests=64,
    max_queued_requests=64,
    load_timeout_s=1.0,
    max_outstanding_stores=0,
)


@dataclasses.dataclass(slots=True)
class _Cost:
    """What a load took inside handle."""

    num_events: int = 0
    num_microbatches: int = 0
    spent_s: float = 0.0
    longest_s: float = 0.0


def _serve(specs: list[RequestSpec], *, num_pages: int) -> _Cost:
    """Serve requests to their end; stages acknowledge in order, every token is 1."""
    engine = Engine(_CONFIG)
    engine.handle(RouteFormed(epoch=1, num_stages=_NUM_STAGES, num_pages=num_pages), 0.0)
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
                seq_no, ids = action.seq_no, (1,) * len(action.samples)
                events.append(Acked(epoch=1, stage=0, seq_no=seq_no))
                events.append(Acked(epoch=1, stage=1, seq_no=seq_no, sampled_ids=ids))
            elif isinstance(action, MatchPrefix):
                name = action.request_id
                events.append(Matched(request_id=name, num_pages=0, lease_id=None))
    if not engine.is_idle():
        raise SystemExit("the engine is not at rest")
    return cost


def _show(name: str, costs: list[_Cost]) -> None:
    """Print the best of some runs."""
    best = min(costs, key=lambda cost: cost.spent_s)
    worst_s = max(cost.spent_s for cost in costs)
    print(
        f"{name:<28}{best.num_microbatches:>8} microbatches"
        f"{best.num_microbatches / best.spent_s:>10.0f} /s"
        f"{best.spent_s / best.num_events * 1e6:>9.1f} us a handle"
        f"{best.longest_s * 1e3:>9.2f} ms the longest"
        f"   spread {worst_s / best.spent_s:.2f}x"
    )


def main() -> None:
    """Print one line for each load."""

    def decode() -> list[RequestSpec]:
        return [make_spec(f"r{index}", 16, max_new_tokens=200) for index in range(64)]

    _show("64 requests decode", [_serve(decode(), num_pages=64 * 14) for _ in range(3)])
    for num_tokens in (250_000, 1_000_000):
        spec = make_spec("long", np.zeros(num_tokens, dtype=np.uint32))
        costs = [_serve([spec], num_pages=num_tokens // 16 + 1) for _ in range(3)]
        _show(f"prompt of {num_tokens} tokens", costs)


if __name__ == "__main__":
    main()
