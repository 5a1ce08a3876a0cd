"""A minute of the soak: everything that clients do, on real processes, leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import run_soak

GROWTH_BYTES = 24 << 20
"""Of one process in a minute; the allocator's own ways are a part of it."""


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
