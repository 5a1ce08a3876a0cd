"""An engine with simulated stages and a simulated HiCache, moved one step at a time.

Checks everything that the engine says while it goes: what clients hear, one end for each output,
leases given back once, nothing about those who have ended; and its orders (order_checks.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.pages import extend_chain
from scheduler.actions import (
    Action,
    CommitPages,
    Failed,
    Finished,
    MatchPrefix,
    Output,
    Progress,
    PromptLogprobs,
    ReleaseLease,
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
from scheduler.latency_model import PipelineLatency
from tests.order_checks import OrderChecks
from tests.simulated_stage import PAGE_TOKENS, Redis, SimulatedStage, log_probs, next_token

NUM_PAGES = 40


class SimulatedMesh:
    """Everything around the engine."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_stages: int,
        num_pages: int = NUM_PAGES,
        latency: PipelineLatency | None = None,
    ) -> None:
        """Form the first route; latency is what the engine believes of its stages."""
        self.engine = Engine(config)
        self.specs: dict[str, RequestSpec] = {}
        self.finished: dict[tuple[str, int], Finished] = {}
        """By request and child."""
        self.failed: dict[str, Failed] = {}
        self.cancelled: set[str] = set()
        self._config = config
        self._num_stages, self._num_pages = num_stages, num_pages
        self._latency = latency
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
        self._outputs: dict[tuple[str, int], list[int]] = {}
        self._processed: dict[str, int] = {}
        """Prompt tokens that a client knows to be computed."""
        self._prompt_told: dict[str, int] = {}
        """Prompt tokens behind the first whose log-probabilities a client knows."""
        self.form()

    def form(self) -> None:
        """Form a new route; the old one's last words may still arrive."""
        for stage in self._stages:
            self._ghosts += stage.said
        self._epoch += 1
        self._checks = OrderChecks(
            self._config,
            num_stages=self._num_stages,
            epoch=self._epoch,
            specs=self.specs,
            outputs=self._outputs,
        )
        self._stages = [
            SimulatedStage(
                index=index,
                epoch=self._epoch,
                num_pages=self._num_pages,
                is_last=index == self._num_stages - 1,
            )
            for index in range(self._num_stages)
        ]
        self._give(
            RouteFormed(
                epoch=self._epoch,
                num_stages=self._num_stages,
                num_pages=self._num_pages,
                latency=self._latency,
            )
        )

    def lose(self) -> None:
        """Lose the route."""
        for stage in self._stages:
            self._ghosts += stage.said
        self._stages = []
        self._give(RouteLost(reason="lost"))

    def arrive(self, spec: RequestSpec) -> None:
        """Let a request arrive."""
        self.specs[spec.request_id] = spec
        self._outputs |= {(spec.request_id, child): [] for child in range(spec.num_outputs)}
        self._processed[spec.request_id] = self._prompt_told[spec.request_id] = 0
        self._give(Arrived(spec=spec))

    def cancel(self, request_id: str) -> None:
        """Let a client give up."""
        if request_id in self.specs and not self._has_ended(request_id):
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
        assert all(self._has_ended(request_id) for request_id in self.specs)
        for (request_id, child), end in self.finished.items():
            output = self._outputs[request_id, child]
            expected = _expected(self.specs[request_id], child)
            if end.reason == "abort":
                assert request_id in self.cancelled
                assert output == expected[: len(output)]
                continue
            spec = self.specs[request_id]
            assert output == expected
            assert end.cached_tokens + sum(end.chunk_tokens) == len(spec.prompt_ids)
            if spec.prompt_top_logprobs is not None:
                assert end.cached_tokens == 0
                assert self._prompt_told[request_id] == len(spec.prompt_ids) - 1

    def _has_ended(self, request_id: str) -> bool:
        """Whether nothing more may come of a request."""
        num_outputs = self.specs[request_id].num_outputs
        ends = [(request_id, child) in self.finished for child in range(num_outputs)]
        return request_id in self.failed or all(ends)

    def _known(self, request_id: str, child: int) -> list[int]:
        """Return prompt and output so far."""
        return [*self.specs[request_id].prompt_ids.tolist(), *self._outputs[request_id, child]]

    def _give(self, event: Event) -> None:
        """Give the engine an event and do what it says."""
        self._now_s += 0.001
        for action in self.engine.handle(event, self._now_s):
            self._do(action)

    def _hear(self, stage: SimulatedStage) -> None:
        """Hear what a stage said first."""
        event = stage.said.popleft()
        if isinstance(event, Acked):
            self._checks.acked(event.stage)
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
        self._give(
            Matched(
                request_id=match.request_id,
                child=match.child,
                num_pages=num_pages,
                lease_id=lease_id,
            )
        )

    def _do(self, action: Action) -> None:
        """Do one action."""
        match action:
            case MatchPrefix():
                self._check_match(action)
                self._matching.append(action)
            case ReleaseLease(lease_id=lease_id):
                self._leases.remove(lease_id)
            case CommitPages(stage=index, namespace=namespace, pages=pages):
                for page in pages:
                    assert page.page_index or page.parent == namespace
                    self._committed.setdefault(page.digest, set()).add(index)
            case Output() | Progress() | PromptLogprobs() | Finished() | Failed():
                self._hear_news(action)
            case _:
                self._checks.check(action)
                for stage in self._stages:
                    stage.orders.append(action)

    def _hear_news(self, news: Output | Progress | PromptLogprobs | Finished | Failed) -> None:
        """Be the client: nothing comes late, twice or out of order."""
        request_id = news.request_id
        assert not self._has_ended(request_id)
        match news:
            case Output():
                assert (request_id, news.child) not in self.finished
                self._check_logprobs(news)
                self._outputs[request_id, news.child] += news.token_ids
            case Progress(processed=processed):
                assert news.chunk_index <= news.chunks_planned
                assert news.eta_s >= 0
                if processed == news.total:
                    assert (news.chunk_index, news.eta_s) == (news.chunks_planned, 0)
                assert processed > self._processed[request_id]
                assert not self._outputs[request_id, 0]
                self._processed[request_id] = processed
            case PromptLogprobs(start=start, logprobs=logprobs):
                assert start == self._prompt_told[request_id] + 1
                self._prompt_told[request_id] += len(logprobs)
                spec = self.specs[request_id]
                ids = spec.prompt_ids.tolist()
                told = ids[start : start + len(logprobs)]
                _check_equal(logprobs, log_probs(ids[:start], told, spec.prompt_top_logprobs or 0))
            case Finished(child=child):
                assert (request_id, child) not in self.finished
                self.finished[request_id, child] = news
            case Failed():
                self.failed[request_id] = news

    def _check_logprobs(self, output: Output) -> None:
        """Log-probabilities come with each token exactly if they were asked for."""
        num_top = self.specs[output.request_id].sampling.top_logprobs
        if num_top is None or not output.token_ids:
            assert output.logprobs is None
            return
        assert output.logprobs is not None
        known = self._known(output.request_id, output.child)
        _check_equal(output.logprobs, log_probs(known, output.token_ids, num_top))

    def _check_match(self, match: MatchPrefix) -> None:
        """The pages asked for are known, and leave at least one token to compute."""
        spec = self.specs[match.request_id]
        known = self._known(match.request_id, match.child)
        assert 0 < len(match.digests) * PAGE_TOKENS < len(known)
        ids = np.array(known, dtype=np.uint32)
        chain = extend_chain(spec.namespace, ids, PAGE_TOKENS)
        assert match.digests == chain[: (len(known) - 1) // PAGE_TOKENS]
        if spec.prompt_top_logprobs is not None:
            assert self._prompt_told[match.request_id] == len(spec.prompt_ids) - 1


def _expected(spec: RequestSpec, child: int) -> list[int]:
    """Return the whole output that a request must have."""
    context: list[int] = spec.prompt_ids.tolist()
    outputs: list[int] = []
    while len(outputs) < spec.max_new_tokens:
        forbidden = sorted(spec.end_ids) if len(outputs) < spec.min_new_tokens else []
        outputs.append(next_token(context + outputs, forbidden, child))
        if outputs[-1] in spec.end_ids:
            break
    return outputs


def _check_equal(told: TokenLogprobs, expected: TokenLogprobs) -> None:
    """Compare log-probabilities."""
    assert np.array_equal(told.logprobs_T, expected.logprobs_T)
    assert np.array_equal(told.top_ids_Tk, expected.top_ids_Tk)
    assert np.array_equal(told.top_logprobs_Tk, expected.top_logprobs_Tk)


def run(mesh: SimulatedMesh, choose: Callable[[int], int], *, num_moves: int) -> bool:
    """Make up to num_moves moves, each chosen by index; return whether there was always one."""
    for _ in range(num_moves):
        moves: Sequence[Callable[[], None]] = mesh.moves()
        if not moves:
            return False
        moves[choose(len(moves))]()
    return True
