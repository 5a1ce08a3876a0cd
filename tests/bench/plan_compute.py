"""`python -m tests.bench.plan_compute`: chunk plans by the processor time of their chunks.

For machines that are never quiet, where times of a mesh say more of its neighbours. One stage, the
first half of the demo model, computes the chunks of each plan on one thread. A pipeline of two such
stages is taken to finish when the recurrence of these times says; mesh and links are left out.
Beside it is what the fit says of the same chunks, from a profile that this process has measured.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from chunkmesh.demo_model import ensure_demo_model
from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_fit import LatencyPoint, fit_latency
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.pipeline_time import chunk_times_ms, finish_times_ms
from stage_worker.model_stage import load_stage
from stage_worker.orders import Entry, Microbatch
from stage_worker.profiler import Profiler
from stage_worker.stage import Stage
from stage_worker.start_profile import profile_limits
from tests.bench import machine
from tests.bench.measure import cell, interleave, table

_LAYERS = range(15)
_PAGE_TOKENS = 64
_MOST_TOKENS = 256
_CAPACITY_TOKENS = 16384


def compare(model_path: Path, *, rounds: int, num_tokens: int) -> str:
    """Compare fixed sizes with what optimal plans by the fit."""
    torch.set_num_threads(1)
    stage = load_stage(model_path, layers=_LAYERS)
    latency = PipelineLatency((_profiled(stage),) * 2)
    optimal = OptimalChunks(
        latency=latency, page_tokens=_PAGE_TOKENS, max_chunk_tokens=_MOST_TOKENS
    )
    plans = {"optimal": [0, *optimal.cut(0, num_tokens)]} | {
        f"fixed {size}": [*range(0, num_tokens, size), num_tokens] for size in (64, 128, 256, 512)
    }
    stage.allocate(num_pages=-(-num_tokens // _PAGE_TOKENS), page_tokens=_PAGE_TOKENS)
    work: dict[str, Callable[[], float]] = {
        name: lambda borders=borders: _finish_s(stage, borders)  # type: ignore[misc]
        for name, borders in plans.items()
    }
    samples = interleave(rounds, work, unit="s")
    rows = []
    for name, borders in plans.items():
        edges = np.array(borders, dtype=np.float64)
        times_ms = chunk_times_ms(latency, edges[:-1], edges[1:])
        fitted_s = finish_times_ms(times_ms, np.diff(edges))[-1, -1] / 1000
        sizes = np.diff(borders)
        rows.append(
            [
                name,
                f"{len(sizes)}: {sizes[0]} .. {sizes[-1]}",
                cell(samples[name]),
                f"{fitted_s:.2f} s",
            ]
        )
    return table(
        f"{num_tokens} tokens on two stages, by the processor time of one",
        ["plan", "chunks", "finish", "by the fit"],
        rows,
    )


def _profiled(stage: Stage) -> StageLatency:
    """Fit the profile that a worker would measure, by processor time as it does."""
    limits = profile_limits(
        device="cpu", tokens=None, kv_capacity_tokens=_CAPACITY_TOKENS, timeout_s=60
    )
    profiler = Profiler(limits, page_tokens=_PAGE_TOKENS, compute_clock=time.thread_time)
    points = []
    for point in profiler.measure(stage):
        shape = point.shape
        work = Work.of_chunk(shape.prefix_tokens, shape.prefix_tokens + shape.chunk_tokens)
        if shape.num_rows:
            work = Work.of_rows([shape.prefix_tokens + 1] * shape.num_rows)
        points.append(LatencyPoint(work=work, ms=point.compute_us / 1000))
    fit = fit_latency(points)
    assert fit.latency is not None, fit.refused
    return fit.latency


def _finish_s(stage: Stage, borders: list[int]) -> float:
    """Compute all chunks; return when two such stages would be through."""
    ids = np.arange(borders[-1], dtype=np.uint32)
    times_ms = []
    num_pages = 0
    for start, end in itertools.pairwise(borders):
        first_page, num_pages = num_pages, -(-end // _PAGE_TOKENS)
        entry = Entry(
            row=0,
            start=start,
            num_tokens=end - start,
            new_page_ids=tuple(range(first_page, num_pages)),
        )
        microbatch = Microbatch(
            epoch=1, seq_no=0, entries=(entry,), token_ids=ids[start:end], sampling=()
        )
        hidden_TD = torch.empty(end - start, stage.description.hidden_size)
        began_s = time.thread_time()
        stage.forward(microbatch, None, hidden_TD)
        times_ms.append(1000 * (time.thread_time() - began_s))
    stage.release(0)
    finish_ms = finish_times_ms(np.array([times_ms] * 2), np.diff(np.array(borders, dtype=float)))
    return float(finish_ms[-1, -1]) / 1000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.plan_compute")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=3072)
    options = parser.parse_args()
    print(f"python -m tests.bench.plan_compute {' '.join(sys.argv[1:])}\n{machine.describe()}\n")
    print(compare(ensure_demo_model(), rounds=options.rounds, num_tokens=options.tokens))


if __name__ == "__main__":
    main()
