"""LoadChoice: all, none, or the front that the time limit leaves."""

from __future__ import annotations

import pytest

from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.load_choice import LoadChoice, TierRates, Wanted
from scheduler.load_rates import HOST_PRIOR, PRIOR_BYTES_PER_S, PRIOR_FIXED_S, LoadRates

_CHOICE = LoadChoice(page_tokens=100, chunk_tokens=1000, min_tokens=300)
_PAGE_BYTES = PRIOR_BYTES_PER_S / 100
"""Loaded in 10 ms by the prior."""


def _choose(
    wanted: range,
    *,
    ms_per_page: float | None,
    ms_per_pair: float = 0.0,
    timeout_s: float | None = None,
    num_host: int = 0,
) -> int:
    """Choose on two stages, the second one slower."""
    latency = None
    if ms_per_page is not None:
        fast = StageLatency(ms_per_token=ms_per_page / 200)
        slow = StageLatency(ms_per_token=ms_per_page / 100, ms_per_pair=ms_per_pair)
        latency = PipelineLatency((fast, slow))
    page_bytes = [int(_PAGE_BYTES)] * 2
    rates = TierRates(redis=LoadRates(page_bytes), host=LoadRates(page_bytes, prior=HOST_PRIOR))
    pages = Wanted(pages=wanted, num_host=num_host)
    return _CHOICE.num_pages(pages, rates, latency, timeout_s=timeout_s, now_s=0.0)


@pytest.mark.parametrize(("ms_per_page", "loaded"), [(9.0, 0), (11.0, 40)])
def test_the_faster_is_chosen(ms_per_page: float, loaded: int) -> None:
    """10 ms a page and 5 ms once against what the slowest stage takes to compute a page."""
    assert _choose(range(40), ms_per_page=ms_per_page) == loaded


def test_a_short_load_is_not_worth_its_fixed_time() -> None:
    """Of one page the fixed time is half as much again."""
    assert _choose(range(1), ms_per_page=14.0) == 0
    assert _choose(range(2), ms_per_page=14.0) == 2


def test_pages_behind_a_long_prefix_are_worth_more() -> None:
    """Attention makes late pages dear to compute; loading them costs the same."""
    assert _choose(range(10), ms_per_page=9.0, ms_per_pair=1e-5) == 0
    assert _choose(range(500, 510), ms_per_page=9.0, ms_per_pair=1e-5) == 10


def test_the_time_limit_cuts_what_is_loaded() -> None:
    """More could not arrive in time anyway."""
    limit_s = PRIOR_FIXED_S + 0.0705
    assert _choose(range(40), ms_per_page=20.0, timeout_s=limit_s) == 7
    assert _choose(range(40), ms_per_page=20.0, timeout_s=PRIOR_FIXED_S) == 0
    assert _choose(range(40), ms_per_page=9.0, timeout_s=limit_s) == 0


def test_without_a_latency_a_number_of_tokens_decides() -> None:
    """And the time limit is left to the stages."""
    assert _choose(range(2), ms_per_page=None) == 0
    assert _choose(range(3), ms_per_page=None, timeout_s=1e-9) == 3


@pytest.mark.parametrize(("ms_per_page", "loaded"), [(0.5, 0), (5.0, 10), (20.0, 40)])
def test_each_tier_is_weighed_by_its_own_rate(ms_per_page: float, loaded: int) -> None:
    """Ten host pages at some 1.3 ms, thirty behind them in Redis at 10 ms."""
    assert _choose(range(40), ms_per_page=ms_per_page, num_host=10) == loaded


def test_the_time_limit_is_of_redis_alone() -> None:
    """Host pages are there at once."""
    limit_s = PRIOR_FIXED_S + 0.0705
    assert _choose(range(40), ms_per_page=20.0, timeout_s=limit_s, num_host=10) == 17


def test_without_a_latency_host_pages_are_always_loaded() -> None:
    """A few pages of Redis behind them are not."""
    assert _choose(range(3), ms_per_page=None, num_host=1) == 1
    assert _choose(range(5), ms_per_page=None, num_host=2) == 5
