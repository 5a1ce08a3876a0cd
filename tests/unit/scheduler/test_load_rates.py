"""LoadRates: a line through what was measured, and what is believed before."""

from __future__ import annotations

import pytest

from scheduler.load_rates import PRIOR_BYTES_PER_S, PRIOR_FIXED_S, LoadRates

_MB = 1_000_000


def _measured(loads: list[tuple[int, float]], page_bytes: int = _MB) -> LoadRates:
    """Return the rates of one stage after loads of (bytes, seconds)."""
    rates = LoadRates([page_bytes])
    for num_bytes, took_s in loads:
        rates.measured(0, num_bytes=num_bytes, took_s=took_s, now_s=0.0)
    return rates


def test_the_prior_speaks_before_the_first_load() -> None:
    """Something has to be believed, or nothing would ever be loaded."""
    rates = _measured([])
    assert rates.load_s(10, 0.0) == pytest.approx(PRIOR_FIXED_S + 10 * _MB / PRIOR_BYTES_PER_S)
    assert rates.bytes_per_s == (0.0,)


def test_fixed_time_and_bandwidth_are_told_apart() -> None:
    """Small loads show what a load costs at least, large ones what a byte does."""
    loads = [(n * _MB, 0.02 + n * 0.01) for n in (1, 20, 4, 40, 2, 30) * 5]
    rates = _measured(loads)
    assert rates.load_s(1, 0.0) == pytest.approx(0.03, rel=0.15)
    assert rates.load_s(100, 0.0) == pytest.approx(1.02, rel=0.05)


def test_loads_of_one_size_are_believed_at_that_size() -> None:
    """They say nothing about the slope, but must not break it."""
    rates = _measured([(8 * _MB, 0.5)] * 50)
    assert rates.load_s(8, 0.0) == pytest.approx(0.5, rel=0.05)
    assert rates.load_s(16, 0.0) >= rates.load_s(8, 0.0) > rates.load_s(1, 0.0) >= 0


@pytest.mark.parametrize("loads", [[(_MB, 5.0), (50 * _MB, 0.01)] * 9, [(_MB, 1e-6)] * 9])
def test_no_load_is_faster_for_being_larger(loads: list[tuple[int, float]]) -> None:
    """Noise must not give a negative time."""
    rates = _measured(loads)
    times = [rates.load_s(n, 0.0) for n in (0, 1, 10, 1000)]
    assert times == sorted(times)
    assert times[0] >= 0


def test_a_change_is_learnt_in_a_few_loads() -> None:
    """A store that has become slow must not be believed for long."""
    rates = _measured([(10 * _MB, 0.05)] * 20 + [(10 * _MB, 1.0)] * 10)
    assert rates.load_s(10, 0.0) > 0.8


def test_what_was_measured_long_ago_is_forgotten() -> None:
    """A store that was slow once is tried again."""
    rates = _measured([(10 * _MB, 30.0)] * 20)
    assert rates.load_s(10, 1.0) > 20
    assert rates.load_s(10, 61.0) == pytest.approx(PRIOR_FIXED_S + 10 * _MB / PRIOR_BYTES_PER_S)


def test_the_slowest_stage_counts() -> None:
    """A hit is the minimum over the stages, and begins when the last one has it."""
    rates = LoadRates([_MB, 3 * _MB])
    assert rates.load_s(100, 0.0) == pytest.approx(PRIOR_FIXED_S + 300 * _MB / PRIOR_BYTES_PER_S)
    limit_s = PRIOR_FIXED_S + 30.5 * _MB / PRIOR_BYTES_PER_S
    assert rates.pages_within(limit_s, 0.0) == 10
    assert rates.pages_within(PRIOR_FIXED_S / 2, 0.0) == 0


def test_loads_of_nothing_say_nothing() -> None:
    """A store that is away is no fast one."""
    rates = _measured([(0, 1.0), (10, 0.0)])
    assert rates.bytes_per_s == (0.0,)
    rates = _measured([(10 * _MB, 0.1), (30 * _MB, 0.3)])
    assert rates.bytes_per_s[0] == pytest.approx(100 * _MB)


def test_pages_of_unknown_size_do_not_break_it() -> None:
    """Tests and simulations need not know it."""
    assert LoadRates([0]).pages_within(1.0, 0.0) > 1000
