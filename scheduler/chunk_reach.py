"""How far a chunk may reach within a time: a pipeline's latency, solved for borders. Pure.

On the slowest stage a chunk's time never falls when its end moves out, nor when its start moves
back (a prefix token costs at most what a token does), so "in time" has one turning point each way.
Borders are multiples of align_tokens, but for the first start and the last end of a prompt.
"""

from __future__ import annotations

import copy
import functools
import math

import numpy as np

from scheduler.latency_model import FloatArray, PipelineLatency, StageLatency, Work

_ROUNDING = 1e-12
"""So much longer than its cap, relatively, a chunk may be: the cap may be its own time."""
_ROUNDING_TOKENS = 1e-6
"""So much may a solution be off by floating point and still be taken as the border it means."""
_FURTHEST = 2.0**52
"""No border is beyond it: whole numbers are exact up to there."""


class ChunkReach:
    """Which borders a chunk may have under a cap of its time; immutable."""

    def __init__(
        self, latency: PipelineLatency, *, align_tokens: int, max_chunk_tokens: int | None
    ) -> None:
        """Look at the stages that can be the slowest; 1 <= align_tokens <= max_chunk_tokens."""
        self.rhythm = latency.rhythm()
        """Stages that can be the slowest, at least one."""
        self.align_tokens = align_tokens
        self.max_chunk_tokens: float = math.inf if max_chunk_tokens is None else max_chunk_tokens
        self._terms = tuple(
            (stage.ms_per_pair, stage.ms_per_token, stage.ms_per_prefix_token, constant_ms(stage))
            for stage in self.rhythm
        )

    def of_latency(self, latency: PipelineLatency) -> ChunkReach:
        """Return the same borders for another latency."""
        most = None if math.isinf(self.max_chunk_tokens) else int(self.max_chunk_tokens)
        return ChunkReach(latency, align_tokens=self.align_tokens, max_chunk_tokens=most)

    def aligned_to(self, align_tokens: int) -> ChunkReach:
        """Return the same with borders that are multiples of something else."""
        reach = copy.copy(self)
        reach.align_tokens = align_tokens
        return reach

    @property
    def least_ms(self) -> float:
        """Time of a chunk of hardly anything."""
        return max(stage.floor_ms + stage.edge_ms for stage in self.rhythm)

    def chunk_ms(self, start: int, end: int) -> float:
        """Return the time of a chunk on the stage that is slowest with it."""
        return max(stage.chunk_ms(start, end) for stage in self.rhythm)

    def grows_ms(self, start: int, end: int) -> float:
        """Return what a chunk adds to a microbatch above the floor, where that is most."""
        x, pairs = end - start, end * end - start * start
        return max(b * x + a * pairs + g * start for a, b, g, _ in self._terms)

    def beside_ms(self, work: Work) -> float:
        """Return what other work adds, where that is most."""
        return max(stage.grows_ms(work) for stage in self.rhythm)

    def fits(self, start: int, end: int, cap_ms: float) -> bool:
        """Say whether a chunk is within a cap that is above the floor, but for what is beside."""
        x, pairs = end - start - _ROUNDING_TOKENS, end * end - start * start
        return all(
            fixed_ms + b * x + a * pairs + g * start <= cap_ms * (1 + _ROUNDING)
            for a, b, g, fixed_ms in self._terms
        )

    def chunks_ms(self, starts: FloatArray, ends: FloatArray) -> FloatArray:
        """Return the times of chunks, each on the stage that is slowest with it."""
        times_ms = [stage.chunks_ms(starts, ends) for stage in self.rhythm]
        return functools.reduce(np.maximum, times_ms)

    def slowest(self, start: int, end: int) -> StageLatency:
        """Return the stage that would be slowest with all of [start, end) as one chunk."""
        return max(self.rhythm, key=lambda stage: stage.chunk_ms(start, end))

    def earliest_start(self, start: int, end: int, cap_ms: float) -> int:
        """Return the least border from which a chunk of [start, end) reaches the end in time.

        At least one aligned cell is taken, cap or not.
        """
        cap_ms *= 1 + _ROUNDING
        bound = end - self.max_chunk_tokens
        for a, b, g, fixed_ms in self._terms:
            over_ms = fixed_ms + end * (b + a * end) - cap_ms
            if over_ms > 0:
                divisor = b - g + math.sqrt((b - g) * (b - g) + 4 * a * over_ms)
                bound = max(bound, 2 * over_ms / divisor if divisor else end)
        bound -= _ROUNDING_TOKENS
        align = self.align_tokens
        cell_start = (end - 1) // align * align
        if bound >= cell_start or cell_start <= start:
            return max(cell_start, start)
        return start if bound <= start else math.ceil(bound / align) * align

    def earliest_starts(self, start: int, ends: FloatArray, cap_ms: float) -> FloatArray:
        """Return earliest_start of many ends at once, all aligned, of a prompt from start on."""
        cap_ms *= 1 + _ROUNDING
        bounds = ends - self.max_chunk_tokens
        for a, b, g, fixed_ms in self._terms:
            over_ms = np.maximum(fixed_ms + ends * (b + a * ends) - cap_ms, 0.0)
            divisors = b - g + np.sqrt((b - g) * (b - g) + 4 * a * over_ms)
            needed = np.where(over_ms > 0, ends, -math.inf)
            np.divide(2 * over_ms, divisors, out=needed, where=(over_ms > 0) & (divisors > 0))
            np.maximum(bounds, needed, out=bounds)
        bounds -= _ROUNDING_TOKENS
        cells = np.ceil(bounds / self.align_tokens)
        starts = np.minimum(cells * self.align_tokens, ends - self.align_tokens)
        return np.where(bounds <= start, start, np.maximum(starts, start))

    def latest_end(self, start: int, cap_ms: float) -> int:
        """Return the greatest border that a chunk from start reaches within the cap.

        At least up to the next border, cap or not. May be beyond the prompt's end.
        """
        bound = start + self.max_chunk_tokens
        for a, b, g, fixed_ms in self._terms:
            left_ms = cap_ms - fixed_ms + start * (b - g + a * start)
            divisor = b + math.sqrt(b * b + 4 * a * max(left_ms, 0.0))
            bound = min(bound, 2 * left_ms / divisor if divisor else bound)
        align = self.align_tokens
        cell_end = (start // align + 1) * align
        if bound <= cell_end:
            return cell_end
        return math.floor((bound + _ROUNDING_TOKENS) / align) * align

    def latest_ends(self, starts: FloatArray, cap_ms: float) -> FloatArray:
        """Return latest_end of many starts at once, all aligned."""
        bounds = np.minimum(starts + self.max_chunk_tokens, _FURTHEST)
        for a, b, g, fixed_ms in self._terms:
            left_ms = cap_ms - fixed_ms + starts * (b - g + a * starts)
            divisors = b + np.sqrt(b * b + 4 * a * np.maximum(left_ms, 0.0))
            reached = np.full_like(bounds, math.inf)
            np.divide(2 * left_ms, divisors, out=reached, where=divisors > 0)
            np.minimum(bounds, reached, out=bounds)
        cells = np.floor((bounds + _ROUNDING_TOKENS) / self.align_tokens)
        ends: FloatArray = np.maximum(cells * self.align_tokens, starts + self.align_tokens)
        return ends


def constant_ms(stage: StageLatency) -> float:
    """Return what each chunk pays whatever its size, where the floor does not bind."""
    return stage.fixed_ms + stage.edge_ms
