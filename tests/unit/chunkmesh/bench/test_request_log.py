"""chunkmesh.bench.request_log: what messages make of a request."""

from __future__ import annotations

from chunkmesh.bench.record import NOT_SENT, OK, UNFINISHED
from chunkmesh.bench.request_log import RequestLog
from chunkmesh.v1 import generation_pb2 as pb


def _chunk(*token_ids: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=token_ids))


def _complete(num_tokens: int, **more: object) -> pb.GenerateResponse:
    fields = {"completion_tokens": num_tokens, "prompt_tokens": 100, "cached_tokens": 64, **more}
    return pb.GenerateResponse(complete=pb.GenerateComplete(**fields))  # type: ignore[arg-type]


def _sent() -> RequestLog:
    log = RequestLog(3, due_s=0.5)
    log.sent(1.0)
    return log


def test_a_request_to_its_end() -> None:
    """The complete message brings no token of its own, so it is no arrival."""
    log = _sent()
    log.arrived(_chunk(5), 1.5)
    log.arrived(_chunk(6, 7), 1.75)
    log.arrived(_complete(3, ttft_ms=490.0, num_preemptions=1), 1.8)
    log.ended()
    found = log.record()
    assert (3, OK, 0.5, 1.0) == (found.index, found.status, found.due_s, found.sent_s)
    assert ((1.5, 1.75), (1, 2)) == (found.arrivals_s, found.arrived_tokens)
    assert (100, 3, 64, 1) == (
        found.input_tokens,
        found.output_tokens,
        found.cached_tokens,
        found.num_preemptions,
    )
    assert found.server_ttft_ms == 490.0


def test_tokens_that_only_the_end_tells_of_came_with_it() -> None:
    """A server that does not stream is measured too, as late as it is."""
    log = _sent()
    log.arrived(_complete(4), 2.0)
    assert ((2.0,), (4,)) == (log.record().arrivals_s, log.record().arrived_tokens)


def test_messages_without_tokens_are_no_first_token() -> None:
    """Progress, and text that was held back."""
    log = _sent()
    log.arrived(pb.GenerateResponse(progress=pb.PromptProgress(total=5)), 1.1)
    log.arrived(pb.GenerateResponse(chunk=pb.GenerateStreamChunk(text="x")), 1.2)
    assert log.record().ttft_ms is None


def test_what_has_no_end_is_told_apart() -> None:
    """Not sent, cut short, failed, or ended by the server without a word."""
    log = RequestLog(0, due_s=0.0)
    assert log.record().status == NOT_SENT
    log.sent(1.0)
    assert log.record().status == UNFINISHED
    log.ended()
    assert (log.record().status, log.record().has_failed) == ("NO_END", True)
    failed = _sent()
    failed.failed("UNAVAILABLE", "layers 3-5 have no worker")
    failed.ended()
    assert ("UNAVAILABLE", "layers 3-5 have no worker") == (
        failed.record().status,
        failed.record().error,
    )


def test_an_end_that_is_not_the_request_s_own_is_a_failure() -> None:
    """Aborted by somebody, or without any token."""
    aborted = _sent()
    aborted.arrived(_complete(2, finish_reason=pb.FINISH_REASON_ABORT), 2.0)
    empty = _sent()
    empty.arrived(_complete(0), 2.0)
    assert ("ABORT", "NO_OUTPUT") == (aborted.record().status, empty.record().status)
