"""What one Generate call still has to send: filled by the control loop, emptied by the call."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

from chunkmesh.errors import ChunkMeshError
from scheduler.actions import Finished, Output, Progress, PromptLogprobs


@dataclasses.dataclass(slots=True, kw_only=True)
class Update:
    """Everything new since the last update. A slow reader gets fewer and larger ones."""

    progress: Progress | None = None
    """Only the newest."""
    prompt_logprobs: list[PromptLogprobs] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finished: Finished | None = None
    error: ChunkMeshError | None = None


class RequestStream:
    """Collects one request's events and its times; bounded by the output of the request."""

    def __init__(self, *, prompt_tokens: int, arrived_s: float) -> None:
        """Begin with nothing to send; times are on the scheduler's monotonic clock."""
        self.prompt_tokens = prompt_tokens
        self.arrived_s = arrived_s
        self.output_ids: list[int] = []
        self.text_parts: list[str] = []
        self.cached_tokens = 0
        self._token_times_s: list[float] = []
        self._update = Update()
        self._news = asyncio.Event()
        self._end: Finished | None = None
        self._failure = "gone"
        """Why it ended without Finished: the error's name, or that the client is gone."""

    @property
    def ttft_ms(self) -> float:
        """Time from arrival to the first token; 0 without one."""
        return 1000 * (self._token_times_s[0] - self.arrived_s) if self._token_times_s else 0.0

    @property
    def e2e_ms(self) -> float:
        """Time from arrival to the last token; 0 without one."""
        return 1000 * (self._token_times_s[-1] - self.arrived_s) if self._token_times_s else 0.0

    @property
    def itl_p50_ms(self) -> float:
        """Median gap between tokens; 0 with fewer than two."""
        times = self._token_times_s
        gaps = sorted(late - early for early, late in itertools.pairwise(times))
        return 1000 * gaps[len(gaps) // 2] if gaps else 0.0

    @property
    def finish_reason(self) -> str:
        """Why it ended: stop, length or abort, else the error's name or "gone"."""
        return self._end.reason if self._end else self._failure

    def summary(self) -> dict[str, str | int | float | None]:
        """Describe the request for its log line, without any of its text."""
        end = self._end
        return {
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.cached_tokens,
            "num_chunks": len(end.chunk_tokens) if end else None,
            "output_tokens": len(self.output_ids),
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

    def output(self, output: Output, now_s: float) -> None:
        """Take new output."""
        self._token_times_s.extend(now_s for _ in output.token_ids)
        self.output_ids.extend(output.token_ids)
        self.text_parts.append(output.text)
        self._update.token_ids.extend(output.token_ids)
        self._update.text += output.text
        self._news.set()

    def finish(self, finished: Finished) -> None:
        """Take the end."""
        self.cached_tokens = finished.cached_tokens
        self._end = finished
        self._update.finished = finished
        self._news.set()

    def fail(self, error: ChunkMeshError) -> None:
        """Take the end by an error."""
        self._failure = type(error).__name__
        self._update.error = error
        self._news.set()

    async def next_update(self) -> Update:
        """Wait for news and take all of it."""
        await self._news.wait()
        self._news.clear()
        update, self._update = self._update, Update()
        return update
