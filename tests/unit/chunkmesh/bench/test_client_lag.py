"""chunkmesh.bench.client_lag: when figures are the client's own."""

from __future__ import annotations

import pytest

from chunkmesh.bench.client_lag import ClientLag


def test_a_few_late_ticks_do_not_count() -> None:
    """The 99th percentile is judged, the worst is shown."""
    lag = ClientLag.of([0.0001] * 999 + [0.2], [], cpu_share=0.5)
    assert lag.loop_p99_ms < 1
    assert lag.loop_max_ms == pytest.approx(200)
    assert lag.warning(median_ttft_ms=50, median_itl_ms=5) == ""


def test_nothing_measured_is_not_late() -> None:
    """All at once has no schedule."""
    lag = ClientLag.of([], [], cpu_share=0.5)
    assert (0, 0, 0, 0) == (lag.loop_p99_ms, lag.loop_max_ms, lag.late_p99_ms, lag.late_max_ms)


@pytest.mark.parametrize(("lag_ms", "is_late"), [(1.9, False), (2.1, True)])
def test_a_tenth_of_the_least_latency_is_the_bound(lag_ms: float, is_late: bool) -> None:
    """Of 20 ms a lag of 2 ms."""
    lags = (
        ClientLag.of([lag_ms / 1000], [], cpu_share=0.5),
        ClientLag.of([], [lag_ms / 1000], cpu_share=0.5),
    )
    for lag in lags:
        assert bool(lag.warning(median_ttft_ms=500, median_itl_ms=20)) is is_late


@pytest.mark.parametrize(("lag_ms", "is_late"), [(0.9, False), (1.1, True)])
def test_a_millisecond_is_always_allowed(lag_ms: float, is_late: bool) -> None:
    """No loop is better than that, and without latencies nothing else is known."""
    lag = ClientLag.of([lag_ms / 1000], [], cpu_share=0.5)
    assert bool(lag.warning(median_ttft_ms=2, median_itl_ms=0.5)) is is_late
    assert bool(lag.warning(median_ttft_ms=None, median_itl_ms=None)) is is_late
