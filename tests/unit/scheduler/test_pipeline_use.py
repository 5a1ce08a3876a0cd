"""The bubble, from acknowledgements alone."""

from __future__ import annotations

import pytest

from scheduler.pipeline_use import PipelineUse


def test_waiting_counts_only_while_there_is_work() -> None:
    """Two stages of 10 and 5 ms for each of 100 microbatches, a second apart."""
    use = PipelineUse(2)
    assert use.bubble_ratios == ()
    for index in range(100):
        use.sent(float(index))
        use.acked(0, 10.0, index + 0.010)
        use.acked(1, 5.0, index + 0.015)
        use.rest()
    assert use.bubble_ratios == pytest.approx((1 - 10 / 15, 1 - 5 / 15), abs=1e-3)


def test_old_times_fade() -> None:
    """A pipeline that is full now is not told from what it was an hour ago."""
    use = PipelineUse(1)
    use.sent(0.0)
    for second in range(1, 300):
        use.acked(0, 0.0 if second < 150 else 1000.0, float(second))
    (bubble,) = use.bubble_ratios
    assert 0 < bubble < 0.01


def test_ratio_stays_a_ratio() -> None:
    """Messages that come late in a bunch must not give less than nothing."""
    use = PipelineUse(1)
    use.sent(0.0)
    use.acked(0, 50.0, 0.001)
    assert use.bubble_ratios == (0.0,)
