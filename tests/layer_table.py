"""One decoder layer of Qwen3-8B's shape, measured on an H200: bf16, paged attention, page 128.

The file holds [x, L, ms]: tokens of a chunk, tokens before it, time of the layer.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from scheduler.latency_fit import LatencyPoint
from scheduler.latency_model import FloatArray, Work

_FILE = Path(__file__).parent / "data" / "h200_qwen3_8b_layer_ms.json"
NUM_LAYERS = 36
OVERHEAD_MS = 0.5
"""What the mesh may take for each microbatch and stage."""


def layer_points() -> list[LatencyPoint]:
    """Return what was measured."""
    rows: list[list[float]] = json.loads(_FILE.read_text(encoding="ascii"))
    return [LatencyPoint(work=Work.of_chunk(int(L), int(L + x)), ms=ms) for x, L, ms in rows]


def raw_layer_ms(starts: FloatArray, ends: FloatArray) -> FloatArray:
    """Interpolate linearly in both lengths; a chunk below the shortest takes as long as that."""
    points = layer_points()
    sizes = np.unique([point.work.new_tokens for point in points]).astype(np.float64)
    prefixes = np.unique([point.work.prefix_tokens for point in points]).astype(np.float64)
    table = np.array([point.ms for point in points]).reshape(len(sizes), len(prefixes))
    row, row_share = _place(sizes, ends - starts)
    column, column_share = _place(prefixes, starts)
    low = table[row, column] * (1 - column_share) + table[row, column + 1] * column_share
    high = table[row + 1, column] * (1 - column_share) + table[row + 1, column + 1] * column_share
    times: FloatArray = low * (1 - row_share) + high * row_share
    return times


def _place(knots: FloatArray, at: FloatArray) -> tuple[np.ndarray, FloatArray]:
    """Return the knot below each value and how far it is towards the next; clamped below."""
    clamped = np.maximum(at, knots[0])
    below = np.clip(np.searchsorted(knots, clamped, side="right") - 1, 0, len(knots) - 2)
    return below, (clamped - knots[below]) / (knots[below + 1] - knots[below])
