"""Latencies of stages for property tests."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from scheduler.latency_model import StageLatency
from scheduler.size_ratios import SizeRatios


def _terms(least: float, most: float) -> st.SearchStrategy[float]:
    """Return 0 or anything between two powers of ten."""
    return st.one_of(st.just(0.0), st.floats(least, most).map(lambda power: 10.0**power))


@st.composite
def stages(draw: st.DrawFn) -> StageLatency:
    """Draw a stage whose terms may each be missing, but for the token's and the mesh's own."""
    ms_per_token = 10.0 ** draw(st.floats(-3, 0))
    return StageLatency(
        floor_ms=draw(_terms(-1, 2)),
        fixed_ms=draw(_terms(-2, 2)),
        ms_per_prefix_token=ms_per_token * draw(st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0])),
        ms_per_token=ms_per_token,
        ms_per_pair=draw(_terms(-8, -4)),
        edge_ms=10.0 ** draw(st.floats(-1, 1)),
    )


@st.composite
def sized_stages(draw: st.DrawFn) -> StageLatency:
    """Draw a stage that is better at some sizes: by up to 10 %, of twice as long each."""
    first = draw(st.sampled_from([64, 128, 500]))
    ratios = draw(st.lists(st.floats(0.9, 1.1), min_size=2, max_size=6))
    tokens = tuple(first << step for step in range(len(ratios)))
    return dataclasses.replace(
        draw(stages()), size_ratios=SizeRatios(tokens=tokens, ratios=tuple(ratios))
    )
