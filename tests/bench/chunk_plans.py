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
from scheduler.latency_model import FloatArray, PipelineLatency, StageLatency
from scheduler.pipeline_time import finish_times_ms, plan_finish_ms
from tests.chunk_plans import rivals
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
    plan = strategy.cut_all([(0, tokens)] * repeats)
    plan_ms = 1000 * (time.process_time() - began_s)
    rows = [*rivals(latency, 0, tokens, _SIZES, _PAGE_TOKENS)]
    for kind in ("fixed", "dynamic", "optimal"):
        named = [(name, [ends] * repeats) for name, ends in rows if name.startswith(kind)]
        named = named or [(kind, [*plan.ends])]
        finishes_ms = [_finish_ms(latency, all_ends) for _, all_ends in named]
        best_ms = min(finishes_ms)
        name, all_ends = named[finishes_ms.index(best_ms)]
        raw_ms = min(_raw_ms(layers, other) for _, other in named)
        _print_row(
            [
                f"{tokens}",
                f"{len(layers)}",
                f"{repeats}",
                name,
                f"{len(all_ends[-1])}",
                f"{best_ms / 1000:.3f}",
                f"{ideal_ms / best_ms:.1%}",
                f"{raw_ms / 1000:.3f}",
                f"{plan_ms:.0f}" if kind == "optimal" else "",
            ]
        )


def _borders(all_ends: Sequence[Sequence[int]]) -> tuple[FloatArray, FloatArray]:
    """Return where the chunks of all prompts start and end."""
    starts = [start for ends in all_ends for start in (0, *ends[:-1])]
    stops = [stop for ends in all_ends for stop in ends]
    return np.array(starts, dtype=np.float64), np.array(stops, dtype=np.float64)


def _finish_ms(latency: PipelineLatency, all_ends: Sequence[Sequence[int]]) -> float:
    """Return the finish by the model."""
    return plan_finish_ms(latency, *_borders(all_ends))


def _raw_ms(layers: Sequence[int], all_ends: Sequence[Sequence[int]]) -> float:
    """Return the finish by the measured table."""
    starts, stops = _borders(all_ends)
    layer_ms = raw_layer_ms(starts, stops)
    times_ms = np.stack([num * layer_ms + OVERHEAD_MS for num in layers])
    return float(finish_times_ms(times_ms, stops - starts)[-1, -1])


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
