"""Profiles that workers measured on GPUs, in tests/data/profiles."""

from __future__ import annotations

import json
from pathlib import Path

from scheduler.latency_fit import LatencyPoint
from scheduler.latency_model import Work

_FOLDER = Path(__file__).parent / "data" / "profiles"


def profile_points(name: str) -> list[LatencyPoint]:
    """Read the points of a profile."""
    content = json.loads((_FOLDER / f"{name}.json").read_text())
    return [
        LatencyPoint(
            work=Work.of_rows([prefix + 1] * num_rows)
            if num_rows
            else Work.of_chunk(prefix, prefix + tokens),
            ms=compute_us / 1000,
        )
        for prefix, tokens, num_rows, compute_us in content["points"]
    ]
