"""chunkmesh.bench.comparison: what two results say of each other, and what they do not."""

from __future__ import annotations

import pytest

from chunkmesh.bench.client_lag import ClientLag
from chunkmesh.bench.comparison import (
    ComparedFigure,
    Verdict,
    cautions,
    check_workloads,
    compare,
    differences,
)
from chunkmesh.errors import ConfigError
from tests.bench_records import result, run


def _figure(base: tuple[float, ...], new: tuple[float, ...], *, is_rate: bool) -> ComparedFigure:
    return ComparedFigure(name="x", base=base, new=new, is_rate=is_rate)


def test_the_ratio_is_of_medians() -> None:
    """One slow run of five changes nothing."""
    assert _figure((1, 2, 90), (3, 4, 5), is_rate=True).ratio == 2.0
    assert _figure((0,), (3,), is_rate=True).ratio is None


@pytest.mark.parametrize(
    ("base", "new", "is_rate", "verdict"),
    [
        ((10, 11), (12, 13), True, Verdict.BETTER),
        ((10, 11), (12, 13), False, Verdict.WORSE),
        ((10, 11), (8, 9), True, Verdict.WORSE),
        ((10, 11), (8, 9), False, Verdict.BETTER),
        ((10, 12), (11, 13), True, Verdict.WITHIN_SPREAD),
        ((10, 12), (12, 13), True, Verdict.WITHIN_SPREAD),
        ((10,), (20, 21), True, Verdict.ONE_RUN),
        ((10, 11), (20,), False, Verdict.ONE_RUN),
    ],
)
def test_a_difference_counts_if_the_runs_do_not_overlap(
    base: tuple[float, ...], new: tuple[float, ...], is_rate: bool, verdict: Verdict
) -> None:
    """A single run says nothing about its own spread."""
    assert _figure(base, new, is_rate=is_rate).verdict is verdict


def test_unlike_workloads_are_refused_with_what_differs() -> None:
    """A shorter prompt would look like a faster mesh."""
    base = result(run({}), workload={"seed": 0, "dataset": {"name": "random", "input": 64}})
    new = result(run({}), workload={"seed": 1, "dataset": {"name": "random", "input": 32}})
    check_workloads(base, base)
    with pytest.raises(ConfigError) as caught:
        check_workloads(base, new)
    assert "seed is 0, then 1; dataset.input is 64, then 32" in str(caught.value)
    assert "--allow-different" in str(caught.value)


def test_what_only_one_has_differs() -> None:
    """A workload of an older program may lack a field."""
    assert ["b is None, then 2"] == differences({"a": 1}, {"a": 1, "b": 2})


def test_figures_that_both_have_are_compared_rates_first() -> None:
    """Deviations are no latencies, counts are no speed."""
    figures = {"completed": 8, "median_ttft_ms": 5, "std_ttft_ms": 1, "output_throughput": 9}
    base = result(run({**figures, "p99_itl_ms": 4}))
    rows = compare(base, result(run(figures)))
    assert ["output_throughput", "median_ttft_ms"] == [row.name for row in rows]
    assert [True, False] == [row.is_rate for row in rows]


def test_goodput_is_compared_under_the_same_targets_only() -> None:
    """Softer targets give more goodput on the same mesh."""
    base = result(run({"request_goodput": 1}), goodput_ms={"ttft": 500})
    softer = result(run({"request_goodput": 2}), goodput_ms={"ttft": 900})
    assert len(compare(base, base)) == 1
    assert compare(base, softer) == ()


def test_doubtful_results_are_named() -> None:
    """Cut short, with failures, or of a client that was too slow."""
    late = ClientLag(loop_p99_ms=50, loop_max_ms=60, late_p99_ms=0, late_max_ms=0, cpu_share=1)
    failures = {"UNAVAILABLE": {"count": 2, "example": "x"}}
    made = result(run({}), run({}, end="duration", failures=failures), run({}, lag=late))
    first, second, third = cautions("r", made)
    assert first == "r, run 2: cut short (duration)"
    assert second == "r, run 2: requests failed: 2 UNAVAILABLE"
    assert third.startswith("r, run 3: the client itself was late")
