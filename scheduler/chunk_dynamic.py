"""SGLang's dynamic chunks: each is planned to take as long as the first did. Pure.

To the letter, so that whoever comes with numbers of that rule finds them: the first chunk is the
initial size whatever the prefix, a microbatch's fixed time is not seen, and a small tail stays.
Source: https://github.com/sgl-project/sglang (ChunkSizePredictor)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from scheduler.latency_model import FloatArray, PipelineLatency

_CONTEXT_MARGIN_TOKENS = 100
"""The rule keeps so far from the end of the context."""
_LEAST_ALIGNMENT_TOKENS = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DynamicChunks:
    """Solves f(L + x) - f(L) = f(C) - f(0) for x, where f is quadratic in all tokens so far."""

    chunk_tokens: int
    """C, the initial size, >= 1."""
    ms_per_token: float
    """b, >= 0."""
    ms_per_pair: float
    """a, >= 0; the size never changes if it is 0."""
    page_tokens: int
    """Sizes are multiples of the larger of it and 64."""
    smooth_factor: float = 0.75
    """Sigma in [0, 1]: how far to follow the solution away from C."""
    context_tokens: int | None = None
    """Longest prompt and output of the model; no cap by it if None."""
    max_prefill_tokens: int | None = None
    """Cap of every chunk but those that fall back to C; none if None."""

    @classmethod
    def of_pipeline(
        cls,
        latency: PipelineLatency,
        *,
        chunk_tokens: int,
        page_tokens: int,
        smooth_factor: float,
        context_tokens: int | None,
    ) -> DynamicChunks:
        """Plan as a route does: by the stage slowest with a first chunk, which fills the buffers.

        What is planned for a route that does not exist, or tried on one, must be what it would do.
        """
        slowest = max(latency.stages, key=lambda stage: stage.chunk_ms(0, chunk_tokens))
        return cls(
            chunk_tokens=chunk_tokens,
            ms_per_token=slowest.ms_per_token,
            ms_per_pair=slowest.ms_per_pair,
            page_tokens=page_tokens,
            smooth_factor=smooth_factor,
            context_tokens=context_tokens,
            max_prefill_tokens=chunk_tokens,
        )

    def cut(self, start: int, end: int) -> Sequence[int]:
        """Return the ends: the first chunk is C, also behind a hit, as the rule has it."""
        ends = [min(start + self.chunk_tokens, end)]
        while ends[-1] < end:
            size = self.next_tokens(ends[-1])
            if size is None:
                size = self.chunk_tokens
            ends.append(min(ends[-1] + size, end))
        return tuple(ends)

    def next_tokens(self, done_tokens: int) -> int | None:
        """Return the size of the chunk behind done_tokens, or None where the rule has no answer."""
        solved = self.equal_time_tokens(done_tokens)
        if solved <= 0:
            return None
        smoothed = self.chunk_tokens + self.smooth_factor * (solved - self.chunk_tokens)
        size = max(int(smoothed), self.chunk_tokens // 4)
        align = max(self.page_tokens, _LEAST_ALIGNMENT_TOKENS)
        size = max(size // align * align, align)
        if self.context_tokens is not None:
            size = min(size, self.context_tokens - done_tokens - _CONTEXT_MARGIN_TOKENS)
        if self.max_prefill_tokens is not None:
            size = min(size, self.max_prefill_tokens)
        size = size // align * align
        return size if size >= align else None

    def sizes_behind(
        self, done_tokens: FloatArray, smooth_factor: FloatArray | float
    ) -> FloatArray:
        """Return next_tokens of many, with other factors and without limits; shapes broadcast.

        Never more than the initial size, which is a multiple of what sizes are aligned to.
        """
        a, b = self.ms_per_pair, self.ms_per_token
        solved = np.full_like(done_tokens, float(self.chunk_tokens))
        if a > 0:
            target_ms = a * self.chunk_tokens**2 + b * self.chunk_tokens
            slope = 2 * a * done_tokens + b
            solved = (np.sqrt(slope * slope + 4 * a * target_ms) - slope) / (2 * a)
        smoothed = self.chunk_tokens + smooth_factor * (solved - self.chunk_tokens)
        wanted = np.maximum(np.floor(smoothed), self.chunk_tokens // 4)
        align = max(self.page_tokens, _LEAST_ALIGNMENT_TOKENS)
        sizes: FloatArray = np.maximum(wanted // align * align, align)
        return np.minimum(sizes, self.chunk_tokens)

    def equal_time_tokens(self, done_tokens: float) -> float:
        """Return the size that takes as long behind done_tokens as C does behind nothing."""
        a, b = self.ms_per_pair, self.ms_per_token
        if a == 0:
            return float(self.chunk_tokens)
        target_ms = a * self.chunk_tokens**2 + b * self.chunk_tokens
        slope = 2 * a * done_tokens + b
        return (math.sqrt(slope * slope + 4 * a * target_ms) - slope) / (2 * a)
