"""What one Generate call still has to send: filled by the control loop, emptied by the call."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from chunkmesh.errors import ChunkMeshError, SlowReader
from chunkmesh.logprobs import TokenLogprobs
from scheduler.actions import Finished, Output, Progress, PromptLogprobs
from scheduler.output_record import OutputRecord

_ID_BYTES = 5
"""Of a token id in a message, at most."""


class TokenTime(NamedTuple):
    """How long a client has waited for a token; a tuple, as one is made for each."""

    since_arrival_s: float | None
    """If it is the first of its request."""
    gap_s: float | None
    """Since the one before it of the same output, if there is one."""


@dataclasses.dataclass(slots=True, kw_only=True)
class OutputNews:
    """Everything new of one output since the last update."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    """Of token_ids, if asked for."""
    num_tokens: int = 0
    """Of the output up to these."""
    finished: Finished | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Update:
    """Everything new since the last update. A slow reader gets fewer and larger ones."""

    progress: Progress | None = None
    """Only the newest."""
    prompt_logprobs: list[PromptLogprobs] = dataclasses.field(default_factory=list)
    outputs: dict[int, OutputNews] = dataclasses.field(default_factory=dict)
    """By child, those of which there is something new."""
    error: ChunkMeshError | None = None


class RequestStream:
    """Collects one request's events and its times.

    What waits is bounded by the request's outputs, the log-probabilities of its prompt, and
    max_unread_bytes while the client takes nothing: a reader that is only late for what it just
    got, however much that is, is not slow.
    """

    def __init__(
        self,
        *,
        prompt_tokens: int,
        arrived_s: float,
        num_outputs: int = 1,
        max_unread_bytes: int | None = None,
        on_slow: Callable[[SlowReader], None] | None = None,
    ) -> None:
        """Begin with nothing to send; times are on the scheduler's monotonic clock.

        on_slow hears once that more than max_unread_bytes wait.
        """
        self.prompt_tokens = prompt_tokens
        self.arrived_s = arrived_s
        self.cached_tokens = 0
        self.outputs = tuple(OutputRecord(arrived_s=arrived_s) for _ in range(num_outputs))
        """By child."""
        self.offered_s: float | None = None
        """Since when the client has not taken a message; None while there is none for it."""
        self._update = Update()
        self._unread_bytes = 0
        """Of the update."""
        self._max_unread_bytes = max_unread_bytes
        self._on_slow = on_slow
        self._news = asyncio.Event()
        self.error: ChunkMeshError | None = None
        """Why it ended before all outputs did; None says that the client is gone, if it did."""
        self._has_begun = False
        """Whether there is a token."""

    @property
    def has_finished(self) -> bool:
        """Whether every output has ended as it should."""
        return all(output.end is not None for output in self.outputs)

    @property
    def output_tokens(self) -> int:
        """Tokens of all outputs so far."""
        return sum(len(output.ids) for output in self.outputs)

    @property
    def ttft_ms(self) -> float:
        """Time from arrival to the first token of any output; 0 without one."""
        return min((output.ttft_ms for output in self.outputs if output.ids), default=0.0)

    @property
    def e2e_ms(self) -> float:
        """Time from arrival to the last token of any output; 0 without one."""
        return max(output.e2e_ms for output in self.outputs)

    @property
    def itl_p50_ms(self) -> float:
        """Median gap between tokens of the same output; 0 without one."""
        gaps = sorted(gap for output in self.outputs for gap in output.gaps_s())
        return 1000 * gaps[len(gaps) // 2] if gaps else 0.0

    @property
    def finish_reason(self) -> str:
        """Why it ended: stop, length or abort, else the error's name or "gone".

        Outputs that ended for different reasons give all of them, as in "length,stop".
        """
        ends = [output.end for output in self.outputs if output.end is not None]
        if len(ends) < len(self.outputs):
            return "gone" if self.error is None else type(self.error).__name__
        return ",".join(sorted({end.reason for end in ends}))

    def summary(self) -> dict[str, str | int | float | None]:
        """Describe the request for its log line, without any of its text."""
        ends = [output.end for output in self.outputs if output.end is not None]
        return {
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.cached_tokens,
            "num_chunks": len(ends[0].chunk_tokens) if ends else None,
            "num_outputs": len(self.outputs),
            "output_tokens": self.output_tokens,
            "num_preemptions": sum(end.num_preemptions for end in ends),
            "ttft_ms": round(self.ttft_ms, 1),
            "itl_p50_ms": round(self.itl_p50_ms, 1),
            "finish_reason": self.finish_reason,
        }

    def progress(self, progress: Progress) -> None:
        """Take news of the prefill."""
        self.cached_tokens = progress.cached
        self._update.progress = progress
        self._news.set()

    def prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        """Take log-probabilities of the prompt."""
        self._update.prompt_logprobs.append(logprobs)
        self._news.set()
        self._count_unread(_logprob_bytes(logprobs.logprobs))

    def output(self, output: Output, now_s: float) -> TokenTime | None:
        """Take new output; return how long its token took, if it has one."""
        gap_s = self.outputs[output.child].add(output, now_s)
        news = self._news_of(output.child)
        news.token_ids.extend(output.token_ids)
        news.text += output.text
        news.num_tokens = len(self.outputs[output.child].ids)
        if output.logprobs is not None:
            news.logprobs.append(output.logprobs)
        num_bytes = _ID_BYTES * len(output.token_ids) + len(output.text)
        self._count_unread(num_bytes + _logprob_bytes(output.logprobs))
        if not output.token_ids:
            return None
        is_first, self._has_begun = not self._has_begun, True
        return TokenTime(now_s - self.arrived_s if is_first else None, gap_s)

    def finish(self, finished: Finished) -> None:
        """Take the end of an output."""
        self.cached_tokens = finished.cached_tokens
        self.outputs[finished.child].end = finished
        self._news_of(finished.child).finished = finished

    def fail(self, error: ChunkMeshError) -> None:
        """Take the end by an error."""
        self.error = error
        self._update.error = error
        self._news.set()

    def give_up(self, error: ChunkMeshError) -> None:
        """Drop what waits: the call is being ended with an error."""
        self.error = error
        self._update, self._unread_bytes = Update(), 0

    async def next_update(self) -> Update:
        """Wait for news and take all of it."""
        await self._news.wait()
        self._news.clear()
        self._unread_bytes = 0
        update, self._update = self._update, Update()
        return update

    def _count_unread(self, num_bytes: int) -> None:
        """Count what waits, and tell once that it is too much for who takes nothing."""
        self._unread_bytes += num_bytes
        limit = self._max_unread_bytes
        if limit is None or self._unread_bytes <= limit or self.offered_s is None:
            return
        on_slow, self._on_slow = self._on_slow, None
        if on_slow is not None:
            on_slow(
                SlowReader(
                    f"{self._unread_bytes} bytes wait for a client that does not read, the limit "
                    f"is {limit} (--max-unread-bytes)"
                )
            )

    def _news_of(self, child: int) -> OutputNews:
        """Return an output's news, to add to."""
        self._news.set()
        return self._update.outputs.setdefault(child, OutputNews())


def _logprob_bytes(logprobs: TokenLogprobs | None) -> int:
    """Return how much log-probabilities take in a message, about."""
    if logprobs is None:
        return 0
    return len(logprobs) * (4 + (4 + _ID_BYTES) * int(logprobs.top_ids_Tk.shape[1]))
