"""`python -m tests.bench.chunk_plans`: what each chunk strategy makes of one measured layer.

Needs no mesh: the finish of the pipeline is computed from the fit of the layer, its floor and the
mesh's own time included, and again with times interpolated in the measured table. The other
strategies are tuned over a grid, for each of the two by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_fit import fit_latency
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.pipeline_time import finish_times_ms
from tests.chunk_plans import finish_ms, rivals
from tests.layer_table import NUM_LAYERS, OVERHEAD_MS, layer_points, raw_layer_ms

_PAGE_TOKENS = 128
_SIZES = (*range(512, 8192, 256), *range(8192, 32769, 2048))
_HEAD = (
    "tokens",
    "stages",
    "in a row",
    "plan",
    "chunks",
    "finish s",
    "efficiency",
    "raw table s",
    "planned in ms",
)


def main() -> None:
    """Print the fit's errors and a table for prompts and pipelines."""
    fit = fit_latency(layer_points())
    assert fit.latency is not None
    print(f"{fit}\n")
    _print_row(_HEAD)
    _print_row(["---"] * len(_HEAD))
    for tokens in (131072, 1048576):
        for num_stages in (2, 4, 8):
            for repeats in (1, 16):
                _compare(fit.latency, _split(num_stages), tokens, repeats)


def _split(num_stages: int) -> list[int]:
    """Return layers of each stage, the remainder with the later ones."""
    short, num_long = divmod(NUM_LAYERS, num_stages)
    return [short] * (num_stages - num_long) + [short + 1] * num_long


def _compare(layer: StageLatency, layers: Sequence[int], tokens: int, repeats: int) -> None:
    """Print the best of each strategy for one prompt length and pipeline."""
    latency = PipelineLatency(
        tuple(layer.of_layers(num).with_overhead(OVERHEAD_MS) for num in layers)
    )
    single = layer.of_layers(NUM_LAYERS).with_overhead(OVERHEAD_MS)
    ideal_ms = single.chunk_ms(0, tokens) * repeats / len(layers)
    began_s = time.process_time()
    strategy = OptimalChunks(latency=latency, page_tokens=_PAGE_TOKENS)
    ends = strategy.cut_all([(0, tokens)] * repeats).ends[0]
    plan_ms = 1000 * (time.process_time() - began_s)
    plans = [*rivals(latency, 0, tokens, _SIZES, _PAGE_TOKENS)]
    chosen = {
        kind: [plan for plan in plans if plan[0].startswith(kind)] for kind in ("fixed", "dynamic")
    }
    chosen["optimal"] = [("optimal", ends)]
    for of_kind in chosen.values():
        finishes_ms = [finish_ms(latency, 0, plan, repeats) for _, plan in of_kind]
        name, best = of_kind[finishes_ms.index(min(finishes_ms))]
        best_ms = finish_ms(latency, 0, best, repeats)
        raw_ms = min(_raw_ms(layers, other, repeats) for _, other in of_kind)
        _print_row(
            [
                f"{tokens}",
                f"{len(layers)}",
                f"{repeats}",
                name,
                f"{len(best)}",
                f"{best_ms / 1000:.3f}",
                f"{ideal_ms / best_ms:.1%}",
                f"{raw_ms / 1000:.3f}",
                f"{plan_ms:.0f}" if best is ends else "",
            ]
        )


def _raw_ms(layers: Sequence[int], ends: Sequence[int], repeats: int) -> float:
    """Return the finish by the measured table."""
    borders = np.array([0, *ends], dtype=np.float64)
    starts, stops = np.tile(borders[:-1], repeats), np.tile(borders[1:], repeats)
    layer_ms = raw_layer_ms(starts, stops)
    times_ms = np.stack([num * layer_ms + OVERHEAD_MS for num in layers])
    return float(finish_times_ms(times_ms, stops - starts)[-1, -1])


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
