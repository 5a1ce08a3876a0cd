"""All that is known of one output of a request: ids, text, log-probabilities, times, its end."""

from __future__ import annotations

import itertools

from chunkmesh.logprobs import TokenLogprobs
from scheduler.actions import Finished, Output


class OutputRecord:
    """Grows with each Output and is whole once Finished has come; times are monotonic."""

    def __init__(self, *, arrived_s: float) -> None:
        """Begin an output of a request that arrived then."""
        self.ids: list[int] = []
        self.text_parts: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        """Of all ids, if asked for; parts of one k."""
        self.end: Finished | None = None
        self._arrived_s = arrived_s
        self._token_times_s: list[float] = []

    @property
    def ttft_ms(self) -> float:
        """Time from arrival to the first token; 0 without one."""
        return 1000 * (self._token_times_s[0] - self._arrived_s) if self._token_times_s else 0.0

    @property
    def e2e_ms(self) -> float:
        """Time from arrival to the last token; 0 without one."""
        return 1000 * (self._token_times_s[-1] - self._arrived_s) if self._token_times_s else 0.0

    def gaps_s(self) -> list[float]:
        """Return the time between each token and the next."""
        return [late - early for early, late in itertools.pairwise(self._token_times_s)]

    def add(self, output: Output, now_s: float) -> float | None:
        """Take new output; return the time since the token before, if both have one."""
        times_s = self._token_times_s
        gap_s = now_s - times_s[-1] if times_s and output.token_ids else None
        self._token_times_s.extend(now_s for _ in output.token_ids)
        self.ids.extend(output.token_ids)
        self.text_parts.append(output.text)
        if output.logprobs is not None:
            self.logprobs.append(output.logprobs)
        return gap_s
