"""Pieces of the soak: all that clients do, and faults, on real processes, leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import run_soak

FAULTS = ("worker killed", "Valkey killed", "worker stopped", "worker ended", "Valkey flushed")
GROWTH_BYTES = 24 << 20
"""Of one process in a minute; the allocator's own ways are a part of it."""


FAULTS_S = 20.0


@pytest.mark.timeout(300)
def test_faults_under_all_manners_of_clients(tiny: Path) -> None:
    """Nobody sees an end that it must not, no token is wrong, and nothing is left of any request.

    Schedulers are not killed here: leases that nobody gives back would be waited for.
    """
    report = run_soak(tiny, FAULTS_S, warm_up_s=3.0, faults=FAULTS, fault_every_s=1.0)
    print(report.table())
    tally = report.tally
    assert [] == tally.unexpected
    assert 0 == tally.num_wrong
    assert tally.num_compared > 100
    assert sum(tally.faults.values()) >= 2
    assert report.rest_after.is_at_rest()
    assert report.rest_after.tasks <= report.rest_before.tasks + 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_all_manners_of_clients(tiny: Path) -> None:
    """Tokens are right whatever others do, and pages, leases, calls, tasks and memory come back."""
    report = run_soak(tiny, 60.0, warm_up_s=30.0)
    print(report.table())
    tally = report.tally
    assert [] == tally.unexpected
    assert 0 == tally.num_wrong
    assert tally.num_compared > 1000
    assert report.rest_after.is_at_rest()
    assert report.rest_after.tasks <= report.rest_before.tasks + 3
    for name, rss in report.rss_before.items():
        assert report.rss_after[name] - rss < GROWTH_BYTES, name
