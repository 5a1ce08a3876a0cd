"""chunkmesh.cli.readiness: what /ready means."""

from __future__ import annotations

from chunkmesh.address import HostPort
from chunkmesh.cli.readiness import READY, STARTING, Readiness, SideDoor, read_answer


def test_status_200_is_ready_whatever_the_body() -> None:
    """The status is the contract, the body is for people."""
    assert read_answer(200, b"anything") == READY


def test_state_reason_and_progress_are_shown() -> None:
    """A user who waits wants to see why and how long."""
    body = b'{"ready": false, "state": "loading", "reason": "weights", "progress": 1.5}'
    expected = Readiness(ready=False, state="loading: weights", progress=1.0)
    assert expected == read_answer(503, body)


def test_progress_that_is_none() -> None:
    """Whoever answers on that port may be anybody."""
    most = read_answer(503, b'{"state": "x", "progress": 1' + b"0" * 400 + b"}")
    assert most.progress == 1.0
    for text in (b"NaN", b'"1"', b"[" * 100_000):
        assert read_answer(503, b'{"state": "x", "progress": ' + text + b"}").progress is None


def test_plain_text_and_other_json_are_understood() -> None:
    """A proxy's error page must not end the wait."""
    assert read_answer(503, b"warming up") == Readiness(ready=False, state="warming up")
    assert read_answer(503, b"[1]") == Readiness(ready=False, state="[1]")
    assert read_answer(503, b"{}") == Readiness(ready=False, state="not ready")


def test_nobody_there_is_starting() -> None:
    """A service opens its side door only after its imports."""
    assert SideDoor(address=HostPort(host="127.0.0.1", port=1)).ask() == STARTING
