"""Notes what comes of one request while it runs; owned by the task that runs it."""

from __future__ import annotations

from chunkmesh.bench.record import NOT_SENT, OK, UNFINISHED, RequestRecord
from chunkmesh.v1 import generation_pb2 as pb


class RequestLog:
    """One request, from its turn to its end."""

    def __init__(self, index: int, due_s: float) -> None:
        """Begin with a request that was not sent; due_s is since the run began."""
        self.sent_s: float | None = None
        self.index = index
        self._due_s = due_s
        self._status = NOT_SENT
        self._error = ""
        self._arrivals_s: list[float] = []
        self._arrived_tokens: list[int] = []
        self._complete = pb.GenerateComplete()
        self._num_retries = 0

    def sent(self, at_s: float) -> None:
        """Note that it was sent."""
        self.sent_s = at_s
        self._status = UNFINISHED

    def arrived(self, response: pb.GenerateResponse, at_s: float) -> None:
        """Note a message; tokens that only its end tells of came with the end."""
        match response.WhichOneof("event"):
            case "chunk":
                num_tokens = len(response.chunk.token_ids)
            case "complete":
                self._complete = response.complete
                num_tokens = response.complete.completion_tokens - sum(self._arrived_tokens)
                self._status = self._end_status()
            case _:
                return
        if num_tokens > 0:
            self._arrivals_s.append(at_s)
            self._arrived_tokens.append(num_tokens)

    def failed(self, status: str, error: str) -> None:
        """Note that it failed."""
        self._status = status
        self._error = error

    def retried(self) -> None:
        """Note that it is sent again."""
        self._num_retries += 1

    def ended(self) -> None:
        """Note that the call has ended without an error."""
        if self._status == UNFINISHED:
            self.failed("NO_END", "the call ended without a complete message")

    def record(self) -> RequestRecord:
        """Return what is known by now."""
        complete = self._complete
        has_end = complete.completion_tokens > 0
        return RequestRecord(
            index=self.index,
            status=self._status,
            error=self._error,
            due_s=self._due_s,
            sent_s=self.sent_s,
            arrivals_s=tuple(self._arrivals_s),
            arrived_tokens=tuple(self._arrived_tokens),
            input_tokens=complete.prompt_tokens,
            output_tokens=sum(self._arrived_tokens),
            cached_tokens=complete.cached_tokens,
            num_preemptions=complete.num_preemptions,
            num_retries=self._num_retries,
            server_ttft_ms=complete.ttft_ms if has_end else None,
        )

    def _end_status(self) -> str:
        if self._complete.finish_reason == pb.FINISH_REASON_ABORT:
            self._error = "somebody aborted it"
            return "ABORT"
        if not self._complete.completion_tokens:
            self._error = "it ended without a token"
            return "NO_OUTPUT"
        return OK
