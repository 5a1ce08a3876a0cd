"""An engine with simulated stages and a simulated HiCache, moved one step at a time.

Checks everything that the engine says while it goes: order, window, budgets, one end for each
request, leases given back once, nothing about those who have ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from scheduler.actions import (
    Action,
    CommitPages,
    Failed,
    Finished,
    MatchPrefix,
    Output,
    Progress,
    ReleaseLease,
    SendMicrobatch,
)
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import (
    Acked,
    Arrived,
    Cancelled,
    Event,
    Matched,
    RequestSpec,
    RouteFormed,
    RouteLost,
    Tick,
)
from tests.simulated_stage import PAGE_TOKENS, Redis, SimulatedStage, next_token

NUM_PAGES = 40


class SimulatedMesh:
    """Everything around the engine."""

    def __init__(self, config: EngineConfig, *, num_stages: int) -> None:
        """Form the first route."""
        self.engine = Engine(config)
        self.specs: dict[str, RequestSpec] = {}
        self.ended: dict[str, Finished | Failed] = {}
        self.cancelled: set[str] = set()
        self._config = config
        self._num_stages = num_stages
        self._now_s = 0.0
        self._epoch = 0
        self._stages: list[SimulatedStage] = []
        self._ghosts: list[Event] = []
        """Said by stages of earlier epochs, never heard yet."""
        self._matching: list[MatchPrefix] = []
        self._redis: Redis = {}
        self._committed: dict[bytes, set[int]] = {}
        self._leases: set[str] = set()
        self._num_leases = 0
        self._num_sent = 0
        self._num_acked = [0] * num_stages
        self._covered: dict[str, int] = {}
        self._outputs: dict[str, list[int]] = {}
        self.form()

    def form(self) -> None:
        """Form a new route; the old one's last words may still arrive."""
        for stage in self._stages:
            self._ghosts += stage.said
        self._epoch += 1
        self._num_sent, self._num_acked = 0, [0] * self._num_stages
        self._stages = [
            SimulatedStage(
                index=index,
                epoch=self._epoch,
                num_pages=NUM_PAGES,
                is_last=index == self._num_stages - 1,
            )
            for index in range(self._num_stages)
        ]
        self._give(RouteFormed(epoch=self._epoch, num_stages=self._num_stages, num_pages=NUM_PAGES))

    def lose(self) -> None:
        """Lose the route."""
        for stage in self._stages:
            self._ghosts += stage.said
        self._stages = []
        self._give(RouteLost(reason="lost"))

    def arrive(self, spec: RequestSpec) -> None:
        """Let a request arrive."""
        self.specs[spec.request_id] = spec
        self._outputs[spec.request_id] = []
        self._give(Arrived(spec=spec))

    def cancel(self, request_id: str) -> None:
        """Let a client give up."""
        if request_id not in self.ended:
            self.cancelled.add(request_id)
        self._give(Cancelled(request_id=request_id, cause="gone"))

    def evict(self) -> None:
        """Drop one page on one stage, behind everybody's back."""
        if self._redis:
            del self._redis[next(iter(self._redis))]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
        self._give(Tick())

    def moves(self) -> list[Callable[[], None]]:
        """Return everything that can happen next."""
        moves: list[Callable[[], None]] = [
            functools.partial(self._answer_match, match) for match in self._matching
        ]
        upstream = None
        for stage in self._stages:
            if stage.can_work(upstream):
                moves.append(stage.work)
            moves += [
                functools.partial(stage.end_beside, order, self._redis) for order in stage.beside
            ]
            if stage.said:
                moves.append(functools.partial(self._hear, stage))
            upstream = stage
        if self._ghosts:
            moves.append(lambda: self._give(self._ghosts.pop()))
        return moves

    def check_end(self) -> None:
        """Check that everything is as if nothing had ever run, and all answers are right."""
        assert self.engine.is_idle()
        assert not self._leases
        assert set(self.ended) == set(self.specs)
        for request_id, end in self.ended.items():
            if isinstance(end, Failed):
                continue
            outputs = self._outputs[request_id]
            if end.reason == "abort":
                assert request_id in self.cancelled
                assert outputs == self._expected(request_id)[: len(outputs)]
            else:
                assert outputs == self._expected(request_id)
                total = end.cached_tokens + sum(end.chunk_tokens)
                assert total == len(self.specs[request_id].prompt_ids)

    def _expected(self, request_id: str) -> list[int]:
        """Return the whole output that a request must have."""
        spec = self.specs[request_id]
        context: list[int] = spec.prompt_ids.tolist()
        outputs: list[int] = []
        while len(outputs) < spec.max_new_tokens:
            forbidden = sorted(spec.end_ids) if len(outputs) < spec.min_new_tokens else []
            outputs.append(next_token(context + outputs, forbidden))
            if outputs[-1] in spec.end_ids:
                break
        return outputs

    def _give(self, event: Event) -> None:
        """Give the engine an event and do what it says."""
        self._now_s += 0.001
        for action in self.engine.handle(event, self._now_s):
            self._do(action)

    def _hear(self, stage: SimulatedStage) -> None:
        """Hear what a stage said first."""
        event = stage.said.popleft()
        if isinstance(event, Acked):
            self._num_acked[event.stage] += 1
        self._give(event)

    def _answer_match(self, match: MatchPrefix) -> None:
        """Answer with the leading pages that all stages have committed, under a lease."""
        self._matching.remove(match)
        num_pages = 0
        for digest in match.digests:
            if len(self._committed.get(digest, ())) < self._num_stages:
                break
            num_pages += 1
        lease_id = f"lease {self._num_leases}" if num_pages else None
        if lease_id is not None:
            self._num_leases += 1
            self._leases.add(lease_id)
        request_id = match.request_id
        self._give(Matched(request_id=request_id, num_pages=num_pages, lease_id=lease_id))

    def _do(self, action: Action) -> None:
        """Do one action."""
        match action:
            case MatchPrefix():
                prompt_tokens = len(self.specs[action.request_id].prompt_ids)
                assert 0 < len(action.digests) * PAGE_TOKENS < prompt_tokens
                self._matching.append(action)
            case ReleaseLease(lease_id=lease_id):
                self._leases.remove(lease_id)
            case CommitPages(stage=index, namespace=namespace, pages=pages):
                for page in pages:
                    assert page.page_index or page.parent == namespace
                    self._committed.setdefault(page.digest, set()).add(index)
            case Output(request_id=request_id, token_ids=token_ids):
                assert request_id not in self.ended
                self._outputs[request_id] += token_ids
            case Progress(request_id=request_id):
                assert request_id not in self.ended
            case Finished(request_id=request_id) | Failed(request_id=request_id):
                assert request_id not in self.ended
                self.ended[request_id] = action
            case _:
                if isinstance(action, SendMicrobatch):
                    self._check(action)
                for stage in self._stages:
                    stage.orders.append(action)

    def _check(self, microbatch: SendMicrobatch) -> None:
        """Check a microbatch against everything that stages and clients count on."""
        assert (self._epoch, self._num_sent) == (microbatch.epoch, microbatch.seq_no)
        self._num_sent += 1
        assert self._num_sent - self._num_acked[-1] <= self._config.window(self._num_stages)
        assert self._num_sent - self._num_acked[0] <= 2
        rows = [entry.row for entry in microbatch.entries]
        assert len(set(rows)) == len(rows)
        assert microbatch.num_tokens <= self._config.max_microbatch_tokens
        sampled = {sample.entry for sample in microbatch.samples}
        prefill_tokens = 0
        for index, entry in enumerate(microbatch.entries):
            assert entry.request_id not in self.ended
            prompt_tokens = len(self.specs[entry.request_id].prompt_ids)
            end = entry.start + entry.num_tokens
            if entry.request_id in self._covered:
                assert self._covered[entry.request_id] == entry.start
            else:
                assert entry.start % PAGE_TOKENS == 0
            assert entry.num_tokens >= 1
            self._covered[entry.request_id] = end
            assert (end >= prompt_tokens) == (index in sampled)
            prefill_tokens += entry.num_tokens if entry.start < prompt_tokens else 0
        assert prefill_tokens <= self._config.chunked_prefill_tokens


def run(mesh: SimulatedMesh, choose: Callable[[int], int], *, num_moves: int) -> bool:
    """Make up to num_moves moves, each chosen by index; return whether there was always one."""
    for _ in range(num_moves):
        moves: Sequence[Callable[[], None]] = mesh.moves()
        if not moves:
            return False
        moves[choose(len(moves))]()
    return True
