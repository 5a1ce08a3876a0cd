"""What planning itself takes: `python -m tests.bench scheduler` prints it beside the engine's cost.

CPU time of one search, the least of some, so that others on the machine hardly matter.
"""

from __future__ import annotations

import dataclasses
import time

from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.size_ratios import SizeRatios
from tests.bench.measure import table
from tests.layer_table import NUM_LAYERS, OVERHEAD_MS

LIMIT_MS = 50.0
"""For a million tokens, on up to 8 stages, whether sizes make a difference or not."""
_NUM_RUNS = 5
_LAYER = StageLatency(floor_ms=0.6892, ms_per_token=6.3356e-4, ms_per_pair=1.33311e-8)
"""Fit of the measured layer."""
_RATIOS = SizeRatios(
    tokens=(256, 512, 1024, 2048, 3072, 4096, 6144, 8192),
    ratios=(1.1, 0.97, 1.0, 0.98, 1.03, 1.0, 1.02, 1.01),
)


def pipeline(num_stages: int, *, is_even: bool, has_sizes: bool) -> PipelineLatency:
    """Return stages of equal parts of the layers, or of whole layers, the remainder later."""
    short, num_long = divmod(NUM_LAYERS, num_stages)
    layers = [float(short)] * (num_stages - num_long) + [short + 1.0] * num_long
    if is_even:
        layers = [NUM_LAYERS / num_stages] * num_stages
    layer = dataclasses.replace(_LAYER, size_ratios=_RATIOS if has_sizes else None)
    stages = {num: _of_layers(layer, num).with_overhead(OVERHEAD_MS) for num in layers}
    return PipelineLatency(tuple(stages[num] for num in layers))


def _of_layers(layer: StageLatency, num: float) -> StageLatency:
    """Return a stage of parts of layers, too."""
    return dataclasses.replace(
        layer,
        floor_ms=layer.floor_ms * num,
        ms_per_token=layer.ms_per_token * num,
        ms_per_pair=layer.ms_per_pair * num,
    )


def least_ms(latency: PipelineLatency, tokens: int) -> float:
    """Return the least CPU time of some plans of one prompt."""
    chunks = OptimalChunks(latency=latency, page_tokens=128, window=latency.num_stages + 1)
    took_s = []
    for _ in range(_NUM_RUNS):
        began_s = time.process_time()
        chunks.cut(0, tokens)
        took_s.append(time.process_time() - began_s)
    return 1000 * min(took_s)


def planned() -> str:
    """Return a table of stages and prompts."""
    kinds = [(is_even, has_sizes) for has_sizes in (False, True) for is_even in (True, False)]
    rows = []
    for num_stages in (1, 2, 4, 8, 16):
        for tokens in (1 << 17, 1 << 20, 1 << 22):
            taken_ms = [
                least_ms(pipeline(num_stages, is_even=even, has_sizes=sizes), tokens)
                for even, sizes in kinds
            ]
            rows.append([f"{num_stages}", f"{tokens}", *(f"{ms:.0f} ms" for ms in taken_ms)])
    header = ["stages", "tokens", "equal", "unequal", "equal, sizes", "unequal, sizes"]
    aim = f"aim: at most {LIMIT_MS:.0f} ms for 1048576 tokens on up to 8 stages"
    return table(f"CPU time of one plan ({aim})", header, rows)
