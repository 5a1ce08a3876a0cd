"""The microbatches of one route: what goes into the next, what they take, who is late. Pure.

The route decides whose tokens are computed; here is decided when, and all that goes by it is kept:
latency, deadlines, and how long a prompt still takes.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.actions import SendMicrobatch
from scheduler.batching import describe, next_parts
from scheduler.budget import Budget, TokenBudget
from scheduler.chunk_choice import budget_for, choose
from scheduler.chunking import ChunkStrategy
from scheduler.decode_groups import DecodeGroups
from scheduler.engine_config import ChunkStrategyName, EngineConfig
from scheduler.events import Acked, RouteFormed
from scheduler.observations import Observations
from scheduler.outlook import Outlook
from scheduler.pace import Pace
from scheduler.part import Part, work_of
from scheduler.pipeline import Pipeline
from scheduler.prefill import Prefill
from scheduler.request import Request, RequestState
from scheduler.rows import Rows
from scheduler.stage_deadlines import StageDeadlines


class Microbatches:
    """Owner of who takes part in them, and of those in flight."""

    def __init__(
        self,
        formed: RouteFormed,
        config: EngineConfig,
        rows: Rows,
        chunks: ChunkStrategy | None = None,
        observations: Observations | None = None,
    ) -> None:
        """Begin with nobody; cut by chunks if given, whatever config asks for.

        rows are those of the route; what was sent is noted in observations.
        """
        num_stages = formed.num_stages
        window = config.window(num_stages)
        self.pipeline = Pipeline(num_stages=num_stages, window=window)
        self.groups = DecodeGroups(
            config.num_decode_groups(num_stages),
            formed.latency,
            max_members=config.max_microbatch_requests,
        )
        self.deadlines = StageDeadlines(formed, config.stage_deadline_floor_s)
        self.pace = Pace(formed, config)
        self.choice = choose(config, formed.latency)
        shorten_chunks = self.choice.strategy == "optimal"
        self._outlook = Outlook(window=window, shorten_chunks=shorten_chunks)
        self._budget = _budget(formed, config, self.choice.strategy, chunks)
        self._observations = observations or Observations()
        self._prefilling: dict[Request, None] = {}
        """Outputs in PREFILL, in the order in which they began; of several outputs of one prompt
        the first."""
        self._rows, self._epoch, self._config = rows, formed.epoch, config

    @property
    def chunk_alignment_tokens(self) -> int:
        """What optimal chunks are multiples of when nothing is beside; 0 with another strategy."""
        return self._budget.align_tokens

    def begin_prefill(self, request: Request, prefill: Prefill) -> None:
        """Send the chunks of an output from now on; those that are not given are cut."""
        self._budget.begin(prefill)
        self._prefilling[request] = None

    def begin_decode(self, request: Request) -> None:
        """Send an output's decode steps from now on: it has its first token since admission."""
        self._prefilling.pop(request, None)
        self.groups.add(request)

    def pause(self, request: Request) -> None:
        """Send nothing more of an output that leaves as soon as nothing of it is in flight."""
        self.groups.remove(request)
        self._prefilling.pop(request, None)

    def leave(self, request: Request) -> None:
        """Forget an output that ends or waits again."""
        self.pause(request)
        self._budget.leave(request)

    def next(self, stalled: Collection[Request], now_s: float) -> SendMicrobatch | None:
        """Plan and count one more, if there is room for it and work to do.

        stalled are those who decode and wait for a page.
        """
        if not self.pipeline.has_room():
            return None
        parts = next_parts(
            self.groups,
            self._prefilling,
            self._budget,
            stalled=stalled,
            max_requests=self._config.max_microbatch_requests,
        )
        if not parts:
            return None
        for part in parts:
            request = part.request
            request.num_in_flight += 1
            if part.is_chunk:
                self._observations.chunk_tokens.append(part.end - part.start)
            if not request.table.num_named or part.num_samples > 1:
                self._rows.name(request.rows[: max(part.num_samples, 1)])
        work, seq_no = work_of(parts), self.pipeline.send(parts)
        predicted_ms = self.pace.sent(work, now_s)
        self.deadlines.sent(seq_no, work, predicted_ms, now_s)
        return describe(
            parts,
            epoch=self._epoch,
            seq_no=seq_no,
            page_tokens=self._config.page_tokens,
            predicted_ms=predicted_ms,
        )

    def ack(self, acked: Acked, now_s: float) -> tuple[Part, ...] | None:
        """Take an acknowledgement; return the microbatch, or None for a duplicate.

        Raises:
            InvariantViolated: it does not fit what was sent; nothing has changed.
        """
        parts = self.pipeline.ack(acked)
        self._outlook.forget()
        if parts is None:
            return None
        self.deadlines.acked(acked, now_s)
        if self.pace.acked(acked, now_s) and self.pace.latency:
            self._budget.replace(self.pace.latency)
            self.groups.replace(self.pace.latency)
        return parts

    def eta_s(self, request: Request, now_s: float) -> float:
        """Estimate the time until the known tokens of an output are computed, at least 0.

        By the model if there is one, else by its own rate so far: so of one that leaves, too.
        """
        latency = self.pace.latency
        if latency is None or request.state is RequestState.LEAVING:
            return request.eta_s(now_s)
        return self._outlook.left_ms(request, self._prefilling, self.groups, latency) / 1000


def _budget(
    formed: RouteFormed,
    config: EngineConfig,
    strategy: ChunkStrategyName,
    chunks: ChunkStrategy | None,
) -> Budget:
    """Make the budget of the strategy in use, or in tokens for given chunks."""
    if chunks is not None:
        return TokenBudget(chunks, config.chunked_prefill_tokens)
    return budget_for(
        strategy,
        config,
        formed.latency,
        preferred_tokens=formed.chunk_alignment_tokens,
        link=formed.link,
    )
