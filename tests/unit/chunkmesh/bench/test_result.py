"""chunkmesh.bench.result: files that a later program can read, or refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chunkmesh.bench.result import BenchResult
from chunkmesh.errors import ConfigError
from tests.bench_records import record, result, run


def _read(fields: Any) -> BenchResult:
    return BenchResult.from_text(json.dumps(fields), "r.json")


def test_a_result_survives_its_file() -> None:
    """With the requests, if they are kept."""
    made = result(run({"output_throughput": 5.5}, records=(record(), record(1))))
    assert made == _read(made.as_json(with_records=True))


def test_requests_are_left_out_unless_asked_for() -> None:
    """A long run has a hundred thousand gaps."""
    made = result(run({"output_throughput": 5.5}, records=(record(),)))
    fields = made.as_json(with_records=False)
    assert fields["runs"][0]["records"] is None
    assert _read(fields).runs[0].records is None


def test_a_figure_is_told_of_the_runs_that_have_it() -> None:
    """A run in which all failed has no latencies."""
    made = result(run({"median_ttft_ms": 5.0}), run({}), run({"median_ttft_ms": 7.0}))
    assert [5.0, 7.0] == made.values("median_ttft_ms")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "something"}, "no result of chunkmesh bench serve"),
        ({"format": 2}, "format 2, this program reads 1"),
        ({"surprise": 1}, "surprise"),
        ({"runs": [{}]}, "runs.0.end: Field required"),
        ({"runs": []}, "holds no run"),
        ({"goodput_ms": {"ttft": "fast"}}, "goodput_ms.ttft"),
    ],
)
def test_what_is_no_result_is_refused(change: dict[str, Any], complaint: str) -> None:
    """Named, not a stack trace."""
    fields = result(run({})).as_json(with_records=False) | change
    with pytest.raises(ConfigError, match=r"^r\.json") as caught:
        _read(fields)
    assert complaint in str(caught.value)


def test_what_is_no_json_is_refused() -> None:
    """As a picture that was named by mistake."""
    for text in ("\x89PNG", "[]", "null"):
        with pytest.raises(ConfigError, match=r"^r\.json"):
            BenchResult.from_text(text, "r.json")
