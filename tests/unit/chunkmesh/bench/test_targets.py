"""chunkmesh.bench.targets: which requests goodput counts."""

from __future__ import annotations

import pytest

from chunkmesh.bench.targets import meets, parse_targets
from chunkmesh.errors import ConfigError
from tests.bench_records import record


@pytest.mark.parametrize(
    "texts", [["ttft:500", "itl:50"], ["ttft:500 itl:50"], ["ttft:500,itl:50"]]
)
def test_targets_may_be_given_together_or_one_by_one(texts: list[str]) -> None:
    """Peers take them behind one flag."""
    assert {"ttft": 500.0, "itl": 50.0} == parse_targets(texts)


@pytest.mark.parametrize(
    "text", ["ttft", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "speed:5", ":5"]
)
def test_what_is_none_is_refused(text: str) -> None:
    """A target that is not read would make every request good."""
    with pytest.raises(ConfigError, match="--goodput"):
        parse_targets([text])


def test_a_metric_has_one_target() -> None:
    """Which of two counts would be a guess."""
    with pytest.raises(ConfigError, match="ttft is given twice"):
        parse_targets(["ttft:5", "ttft:6"])


@pytest.mark.parametrize(
    ("targets", "is_met"),
    [
        ({"ttft": 501.0}, True),
        ({"ttft": 499.0}, False),
        ({"tpot": 151.0}, True),
        ({"tpot": 149.0}, False),
        ({"itl": 201.0}, True),
        ({"itl": 199.0}, False),
        ({"e2el": 801.0}, True),
        ({"e2el": 799.0}, False),
        ({"ttft": 501.0, "e2el": 799.0}, False),
    ],
)
def test_every_target_must_be_met(targets: dict[str, float], is_met: bool) -> None:
    """TTFT 500, gaps of 100 and 200 (TPOT 150), end to end 800 ms; of itl the worst gap counts."""
    assert meets(record(), targets) is is_met


def test_a_request_that_failed_is_never_good() -> None:
    """However fast it failed."""
    assert not meets(record(status="UNAVAILABLE"), {"ttft": 10_000.0})


def test_a_single_token_meets_targets_of_gaps() -> None:
    """It has none."""
    assert meets(record(arrivals_s=(1.5,)), {"itl": 1.0, "tpot": 1.0})
