"""Least squares without negative solutions, against trying every set of free unknowns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from scheduler.latency_model import FloatArray
from scheduler.non_negative import solve_non_negative


def _by_trying(rows: FloatArray, values: FloatArray) -> float:
    """Return the least squared error over all sets of unknowns that are not 0."""
    num = rows.shape[1]
    best = float(values @ values)
    for count in range(1, num + 1):
        for free in itertools.combinations(range(num), count):
            solution = np.linalg.lstsq(rows[:, free], values, rcond=None)[0]
            if (solution >= 0).all():
                error = rows[:, free] @ solution - values
                best = min(best, float(error @ error))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_as_good_as_any_set_of_free_unknowns(seed: int) -> None:
    """Columns differ by many orders of magnitude, as tokens and pairs do."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 7))
    rows = rng.uniform(0, 1, size=(int(rng.integers(num, 30)), num)) * 10.0 ** rng.integers(
        -3, 9, size=num
    )
    values = rows @ (rng.normal(size=num) / rows.max(axis=0)) + rng.normal(size=len(rows)) * 0.1
    solution = solve_non_negative(rows.T @ rows, rows.T @ values)
    error = rows @ solution - values
    assert (solution >= 0).all()
    assert pytest.approx(_by_trying(rows, values), rel=1e-6, abs=1e-9) == float(error @ error)


def test_singular_sums() -> None:
    """What was never measured and what cannot be told apart has a solution all the same."""
    rows = np.array([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]])
    solution = solve_non_negative(rows.T @ rows, rows.T @ np.array([3.0, 6.0]))
    np.testing.assert_allclose(rows @ solution, [3.0, 6.0])
    assert (solution >= 0).all()


def test_nothing_known() -> None:
    """No data is no time."""
    assert [0.0, 0.0] == solve_non_negative(np.zeros((2, 2)), np.zeros(2)).tolist()
