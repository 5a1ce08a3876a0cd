"""`python -m tests.bench.simulated_recovery`: how long the loss of a stage holds a prompt up.

Simulated: a prompt of 128K tokens is half done when a worker dies and a spare takes over at once.
Resumption is the live engine: the prompt waits again and recomputes all that no stage may use,
through all stages. Stage-wise replay, which is not built, would let the stages behind the lost one
go on with what they have. Both without any cache, and with all pages that were complete on all
stages.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from scheduler.engine import Engine
from scheduler.events import RouteFormed
from scheduler.pipeline_time import chunk_times_ms, finish_times_ms
from scheduler.simulator import Simulation, Simulator
from tests.bench.measure import table
from tests.model_times import CONFIG, ModelTimes, arrival, h200_pipeline

_PROMPT_TOKENS = 128 << 10
_STAGES = (2, 4, 8)
_CONFIG = dataclasses.replace(CONFIG, enable_prefix_caching=True, stage_deadline_floor_s=0.0)


def _simulate(num_stages: int, lost_s: float | None, *, is_restored: bool = False) -> Simulation:
    """Serve the prompt; lose the route at a time, if one is given."""
    latency = h200_pipeline(num_stages)
    pools = tuple(f"pool {stage}" for stage in range(num_stages))
    route = RouteFormed(
        epoch=1, num_stages=num_stages, num_pages=1 << 11, latency=latency, pool_ids=pools
    )
    simulator = Simulator(Engine(_CONFIG), route, ModelTimes(latency))
    if lost_s is not None:
        # Pages that come back from a cache are modelled as pages that were never lost.
        kept = pools if is_restored else ()
        simulator.replace_at(lost_s, dataclasses.replace(route, epoch=2, pool_ids=kept))
    return simulator.run([arrival("a", _PROMPT_TOKENS, page_tokens=_CONFIG.page_tokens)])


def _stage_wise_s(
    undisturbed: Simulation, num_stages: int, lost: int, lost_s: float, *, is_restored: bool
) -> float:
    """Return when the first token would be known if only stages up to the lost one replayed."""
    sent = [each for each in undisturbed.microbatches if each.microbatch.token_ids.size > 1]
    starts = np.array([each.microbatch.entries[0].start for each in sent], dtype=np.float64)
    ends = starts + [each.microbatch.num_tokens for each in sent]
    num_whole = sum(each.spans[-1].end_s <= lost_s for each in sent)
    num_had = [
        sum(each.spans[stage].end_s <= lost_s for each in sent) for stage in range(num_stages)
    ]
    first = num_whole if is_restored else 0
    times_ms = chunk_times_ms(h200_pipeline(num_stages), starts[first:], ends[first:])
    for stage in range(lost + 1, num_stages):
        # What it has had is not computed again; what lies between it and the lost stage goes on.
        times_ms[stage, : max(0, num_had[lost] - first)] = 0.0
    return lost_s + float(finish_times_ms(times_ms, ends[first:] - starts[first:])[-1, -1]) / 1000


def compare() -> str:
    """Return the table."""
    rows = []
    for num_stages in _STAGES:
        undisturbed = _simulate(num_stages, None)
        ttft_s = undisturbed.requests[0].ttft_s
        for lost in dict.fromkeys((0, num_stages // 2, num_stages - 1)):
            cells = [str(num_stages), str(lost), f"{ttft_s:.3f}"]
            for is_restored in (False, True):
                resumed = _simulate(num_stages, ttft_s / 2, is_restored=is_restored)
                resumed_s = resumed.requests[0].ttft_s - ttft_s
                stage_wise_s = (
                    _stage_wise_s(
                        undisturbed, num_stages, lost, ttft_s / 2, is_restored=is_restored
                    )
                    - ttft_s
                )
                cells += [f"{resumed_s:.3f}", f"{stage_wise_s:.3f}"]
            rows.append(cells)
    return table(
        f"Seconds that the first token of {_PROMPT_TOKENS} tokens is late, a stage lost half-way",
        [
            "stages",
            "stage lost",
            "undisturbed TTFT",
            "no cache: resumption",
            "stage-wise",
            "restored: resumption",
            "stage-wise",
        ],
        rows,
    )


if __name__ == "__main__":
    print(compare())
