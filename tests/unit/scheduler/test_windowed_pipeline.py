"""When chunks are through a pipeline with links and a window: as if each were followed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.pipeline_time import LinkTime, chunk_times_ms
from scheduler.window_time import windowed_finish_ms
from scheduler.windowed_pipeline import WindowedPipeline

_STAGE = st.builds(
    StageLatency,
    fixed_ms=st.sampled_from([0.0, 1.0, 10.0]),
    ms_per_token=st.sampled_from([0.01, 0.02, 0.1]),
    ms_per_pair=st.sampled_from([0.0, 1e-6, 1e-5]),
)
_LINKS = st.builds(
    LinkTime,
    latency_ms=st.sampled_from([0.0, 0.1, 5.0, 50.0]),
    ms_per_token=st.sampled_from([0.0, 0.0001, 0.05, 1.0]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(_STAGE, st.integers(1, 3)), min_size=1, max_size=4),
    st.lists(st.integers(1, 900), min_size=1, max_size=60),
    _LINKS,
    st.integers(1, 10),
    st.integers(1, 3),
)
def test_as_if_each_chunk_were_followed(
    runs: list[tuple[StageLatency, int]],
    sizes: list[int],
    link: LinkTime,
    window: int,
    repeats: int,
) -> None:
    """Stages that are alike or not, links that are slower than they, prompts in a row."""
    stages = [stage for stage, count in runs for _ in range(count)]
    latency = PipelineLatency(tuple(stages))
    stops = np.tile(np.cumsum(sizes).astype(float), repeats)
    starts = stops - np.tile(sizes, repeats)
    times_ms = chunk_times_ms(latency, starts, stops)
    expected_ms = windowed_finish_ms(times_ms, stops - starts, link, window=window)[-1, -1]
    pipeline = WindowedPipeline(latency=latency, link=link, window=window)
    assert pytest.approx(expected_ms, rel=1e-11) == pipeline.finish_ms(starts, stops)
    bound_ms = pipeline.finish_ms(starts, stops, 0.9 * expected_ms)
    assert 0.9 * expected_ms < bound_ms <= expected_ms * (1 + 1e-11)
    wide_ms = windowed_finish_ms(times_ms, stops - starts, link, window=len(starts))[-1, -1]
    unbounded = WindowedPipeline(latency=latency, link=link)
    assert pytest.approx(wide_ms, rel=1e-11) == unbounded.finish_ms(starts, stops)


def test_only_far_or_narrow_pipelines_wait() -> None:
    """With a window of one more than stages and free links, alike chunks keep all stages busy."""
    latency = PipelineLatency((StageLatency(ms_per_token=1.0),) * 3)
    kinds = itertools.product((2, 3, 4), (0.0, 1.0))
    found = [
        WindowedPipeline(
            latency=latency, link=LinkTime(latency_ms=latency_ms), window=window
        ).may_wait
        for window, latency_ms in kinds
    ]
    assert [True, True, False, True, False, True] == found
