"""chunkmesh.bench.arrivals: when requests are due."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from chunkmesh.bench.arrivals import arrival_times


def _times(
    number: int, *, rate: float = 10.0, burstiness: float = 1.0, seed: int = 0
) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return arrival_times(number, rate=rate, burstiness=burstiness, rng=rng)


def test_an_infinite_rate_sends_all_at_once() -> None:
    """The usual way to ask for the greatest throughput."""
    assert [0.0, 0.0, 0.0] == _times(3, rate=math.inf).tolist()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_mean_gap_is_that_of_the_rate(burstiness: float) -> None:
    """Burstiness moves requests together, it sends no more of them."""
    times = _times(20_001, burstiness=burstiness)
    assert (0.0, True) == (times[0], bool((np.diff(times) >= 0).all()))
    assert times[-1] / 20_000 == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_by_burstiness(burstiness: float) -> None:
    """A gamma distribution's deviation over its mean is one over the root of its shape."""
    gaps = np.diff(_times(20_001, burstiness=burstiness))
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_infinite_burstiness_is_a_clock() -> None:
    """Nothing is left to chance."""
    assert [0.0, 0.1, 0.2] == pytest.approx(_times(3, burstiness=math.inf).tolist())


def test_a_seed_repeats_the_schedule() -> None:
    """Two meshes are compared under the same bursts."""
    assert _times(50, seed=4).tolist() == _times(50, seed=4).tolist()
    assert _times(50, seed=4).tolist() != _times(50, seed=5).tolist()


@pytest.mark.parametrize("number", [0, 1])
def test_short_schedules(number: int) -> None:
    """No gaps to draw."""
    assert [0.0] * number == _times(number).tolist()
