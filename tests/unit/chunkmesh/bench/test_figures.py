"""chunkmesh.bench.figures: what a run amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from chunkmesh.bench.figures import Figures, failure_counts, figures
from chunkmesh.bench.record import NOT_SENT, UNFINISHED, RequestRecord
from tests.bench_records import record


def _figures(
    records: Sequence[RequestRecord], targets: Mapping[str, float] | None = None
) -> Figures:
    return figures(records, duration_s=4.0, percentiles=[50, 99.9], targets=targets or {})


def _mixed() -> list[RequestRecord]:
    """Return two that ran to their ends, and one of each other kind."""
    return [
        record(0, cached_tokens=50),
        record(1, arrivals_s=(1.2, 1.3)),
        record(2, status="UNAVAILABLE", arrivals_s=()),
        record(3, status=UNFINISHED, arrivals_s=(1.1,)),
        record(4, status=NOT_SENT, arrivals_s=()),
    ]


def test_every_request_is_counted_once() -> None:
    """None is dropped silently."""
    found = _figures(_mixed())
    counts = [found[name] for name in ("completed", "failed", "unfinished", "not_sent")]
    assert [2, 1, 1, 1] == counts


def test_throughput_is_of_what_ran_to_its_end() -> None:
    """200 tokens in and 5 out within 4 s; what was cut short or failed brings nothing."""
    found = _figures(_mixed())
    assert (0.5, 50.0, 1.25, 51.25) == (
        found["request_throughput"],
        found["input_throughput"],
        found["output_throughput"],
        found["total_token_throughput"],
    )
    assert found["cached_ratio"] == pytest.approx(0.25)


def test_latencies_have_mean_median_deviation_and_percentiles() -> None:
    """TTFTs are 500 and 200 ms, gaps 100, 200 and 100 ms."""
    found = _figures(_mixed())
    assert found["mean_ttft_ms"] == pytest.approx(350)
    assert found["std_ttft_ms"] == pytest.approx(150)
    assert found["median_ttft_ms"] == found["p50_ttft_ms"] == pytest.approx(350)
    assert found["p99.9_ttft_ms"] == pytest.approx(200 + 0.999 * 300)
    assert found["median_itl_ms"] == pytest.approx(100)
    assert found["mean_itl_ms"] == pytest.approx(400 / 3)


def test_goodput_counts_requests_within_the_targets() -> None:
    """Only where targets were given."""
    assert "request_goodput" not in _figures(_mixed())
    found = _figures(_mixed(), {"ttft": 300.0})
    assert (1, 0.25) == (found["good_completed"], found["request_goodput"])


def test_tokens_in_a_message_are_told() -> None:
    """ITL says less where messages bring several."""
    found = _figures([record(arrivals_s=(2.0, 3.0), tokens=(2, 4))])
    assert found["tokens_per_message"] == 3.0


def test_what_no_request_has_is_left_out() -> None:
    """0 ms would look like the fastest mesh of all."""
    found = _figures([record(status="UNAVAILABLE", arrivals_s=())])
    assert not [name for name in found if name.endswith("_ms")]
    assert (0.0, 0.0) == (found["request_throughput"], found["tokens_per_message"])


def test_failures_are_counted_by_status_with_what_was_said_first() -> None:
    """Hundred refusals are one line."""
    records = [
        record(0, status="INTERNAL", error="bug"),
        record(1, status="UNAVAILABLE", error="first"),
        record(2, status="UNAVAILABLE", error="second"),
        record(3),
    ]
    counted = failure_counts(records)
    assert ["UNAVAILABLE", "INTERNAL"] == list(counted)
    assert {"count": 2, "example": "first"} == counted["UNAVAILABLE"]
