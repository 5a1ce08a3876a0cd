"""chunkmesh.bench.record: latencies as vLLM defines them."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from chunkmesh.bench.record import NOT_SENT, UNFINISHED, RequestRecord
from tests.bench_records import record


def test_latencies_of_a_request() -> None:
    """Sent at 1.0 s, tokens at 1.5, 1.6 and 1.8 s."""
    done = record()
    assert done.ttft_ms == pytest.approx(500)
    assert done.e2el_ms == pytest.approx(800)
    assert done.tpot_ms == pytest.approx(150)
    assert done.itls_ms == pytest.approx((100, 200))


def test_a_message_of_several_tokens_is_one_gap() -> None:
    """ITL is what a reader waits for; TPOT tells the time of a token."""
    done = record(arrivals_s=(2.0, 2.6), tokens=(1, 3))
    assert done.itls_ms == pytest.approx((600,))
    assert done.tpot_ms == pytest.approx(200)


def test_a_single_token_has_no_gaps() -> None:
    """A mean over nothing must not become 0, which would look fast."""
    done = record(arrivals_s=(2.0,))
    assert (None, ()) == (done.tpot_ms, done.itls_ms)
    assert done.ttft_ms == done.e2el_ms == pytest.approx(1000)


def test_tokens_of_a_single_message_have_no_time_each() -> None:
    """A server that does not stream would win every comparison with 0 ms."""
    assert record(arrivals_s=(2.0,), tokens=(5,)).tpot_ms is None


def test_waiting_for_a_turn_is_not_the_server_s() -> None:
    """TTFT begins when the request is sent, not when it was due."""
    late = RequestRecord(index=0, status="OK", due_s=0.0, sent_s=3.0, arrivals_s=(3.25,))
    assert late.ttft_ms == pytest.approx(250)


@pytest.mark.parametrize(
    ("status", "has_failed"),
    [("OK", False), (UNFINISHED, False), (NOT_SENT, False), ("UNAVAILABLE", True), ("ABORT", True)],
)
def test_what_is_cut_short_has_not_failed(status: str, has_failed: bool) -> None:
    """Ctrl-C is the user's, not the mesh's."""
    assert record(status=status).has_failed is has_failed


def test_it_survives_json() -> None:
    """Plots are drawn from files."""
    done = record(cached_tokens=64, server_ttft_ms=498.5)
    assert done == TypeAdapter(RequestRecord).validate_json(json.dumps(done.as_json()))
