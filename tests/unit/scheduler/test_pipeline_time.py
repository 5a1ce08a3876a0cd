"""When chunks leave a pipeline of unequal stages and links."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.latency_model import FloatArray, PipelineLatency, StageLatency
from scheduler.pipeline_time import LinkTime, finish_times_ms, plan_finish_ms


def _step_by_step(times_ms: FloatArray, tokens: FloatArray, link: LinkTime) -> FloatArray:
    """Follow each chunk through stages and links."""
    num_stages, num_chunks = times_ms.shape
    finish_ms = np.zeros_like(times_ms)
    sent_ms = np.zeros_like(times_ms)
    for chunk in range(num_chunks):
        for stage in range(num_stages):
            arrived_ms = sent_ms[stage - 1, chunk] + link.latency_ms if stage else 0.0
            stage_free_ms = finish_ms[stage, chunk - 1] if chunk else 0.0
            link_free_ms = sent_ms[stage, chunk - 1] if chunk else 0.0
            finish_ms[stage, chunk] = max(arrived_ms, stage_free_ms) + times_ms[stage, chunk]
            sent_ms[stage, chunk] = max(finish_ms[stage, chunk], link_free_ms) + (
                tokens[chunk] * link.ms_per_token
            )
    return finish_ms


@pytest.mark.parametrize(
    "link",
    [
        LinkTime(),
        LinkTime(latency_ms=3.0),
        LinkTime(latency_ms=0.5, ms_per_token=0.01),
        LinkTime(ms_per_token=1.0),
    ],
)
def test_follows_the_recurrence(link: LinkTime) -> None:
    """Stages and links work on one chunk at a time, in order, and beside each other."""
    rng = np.random.default_rng(7)
    times_ms = rng.uniform(1, 50, size=(5, 40))
    tokens = rng.uniform(1, 200, size=40)
    expected = _step_by_step(times_ms, tokens, link)
    np.testing.assert_allclose(finish_times_ms(times_ms, tokens, link), expected, rtol=1e-12)


def test_equal_stages_take_the_sum_and_the_longest_again() -> None:
    """The objective of planning is exact where stages are equal and links are free."""
    stage = StageLatency(fixed_ms=1.0, ms_per_token=0.01, ms_per_pair=1e-6)
    starts, ends = np.array([0.0, 900.0, 1000.0]), np.array([900.0, 1000.0, 4000.0])
    chunk_ms = stage.chunks_ms(starts, ends)
    finish_ms = plan_finish_ms(PipelineLatency((stage,) * 4), starts, ends)
    assert pytest.approx(chunk_ms.sum() + 3 * chunk_ms.max()) == finish_ms


def test_link_of_a_bandwidth() -> None:
    """4096 values of 2 bytes a token at 1 GB/s."""
    link = LinkTime.of_bandwidth(latency_ms=0.2, bytes_per_token=8192, bytes_per_s=1e9)
    assert pytest.approx(8.192) == link.ms_per_token * 1000
    assert 0.2 == link.latency_ms
