"""The simulated pipeline against what can be worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.errors import InvalidRequest
from scheduler.actions import SendMicrobatch
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import RouteFormed
from scheduler.simulator import Arrival, Simulation, Simulator
from tests.specs import make_spec

CONFIG = EngineConfig(
    page_tokens=16,
    chunked_prefill_tokens=64,
    max_running_requests=8,
    max_queued_requests=8,
    load_timeout_s=10.0,
    max_outstanding_stores=0,
)


@dataclasses.dataclass(frozen=True)
class TokenTimes:
    """A stage takes a second a token, times its factor; a link a second."""

    factors: tuple[float, ...]

    def compute_s(self, stage: int, microbatch: SendMicrobatch) -> float:
        """Count tokens."""
        return self.factors[stage] * microbatch.num_tokens

    def send_s(self, _stage: int, _microbatch: SendMicrobatch) -> float:
        """One second."""
        return 1.0


def simulate(
    arrivals: list[Arrival], *, factors: tuple[float, ...] = (1.0, 1.0), num_pages: int = 64
) -> Simulation:
    """Run arrivals on a fresh engine."""
    route = RouteFormed(epoch=1, num_stages=len(factors), num_pages=num_pages)
    return Simulator(Engine(CONFIG), route, TokenTimes(factors)).run(arrivals)


def test_one_prompt_flows_through_the_stages() -> None:
    """Three chunks on two stages: the second stage is a chunk and a link behind the first."""
    done = simulate([Arrival(at_s=5.0, spec=make_spec("a", 192))])
    assert [[(span.start_s, span.end_s) for span in each.spans] for each in done.microbatches] == [
        [(5.0, 69.0), (70.0, 134.0)],
        [(69.0, 133.0), (134.0, 198.0)],
        [(133.0, 197.0), (198.0, 262.0)],
    ]
    assert done.requests[0].ttft_s == 257.0
    assert done.bubble_ratio == pytest.approx(1 - 192 / 257)


def test_the_slowest_stage_sets_the_rhythm() -> None:
    """Chunks leave a slow first stage one after the other, and the fast second one waits."""
    done = simulate([Arrival(at_s=0.0, spec=make_spec("a", 192))], factors=(2.0, 1.0))
    assert [each.spans[1].start_s for each in done.microbatches] == [129.0, 257.0, 385.0]
    assert done.busy_ratio(0) == pytest.approx(384 / 449)
    assert done.busy_ratio(1) == pytest.approx(192 / 449)


def test_decode_steps_wait_for_their_token() -> None:
    """A step needs the token of the step before, so one request keeps one stage busy at a time."""
    done = simulate([Arrival(at_s=0.0, spec=make_spec("a", 16, max_new_tokens=3))])
    assert done.requests[0].token_times_s == [33.0, 36.0, 39.0]


def test_a_refused_request_has_an_error() -> None:
    """What the live engine would refuse is refused here too, and the others run."""
    done = simulate(
        [
            Arrival(at_s=0.0, spec=make_spec("large", 160)),
            Arrival(at_s=0.0, spec=make_spec("small", 16)),
        ],
        num_pages=4,
    )
    assert isinstance(done.requests[0].error, InvalidRequest)
    assert done.requests[1].error is None
    assert len(done.requests[1].token_times_s) == 1


def test_a_link_sends_one_activation_at_a_time() -> None:
    """A slow link is a bottleneck as a slow stage is; its latency only adds to the way."""

    @dataclasses.dataclass(frozen=True)
    class SlowLink(TokenTimes):
        def send_s(self, _stage: int, _microbatch: SendMicrobatch) -> float:
            """Longer than the compute of a chunk."""
            return 100.0

    route = RouteFormed(epoch=1, num_stages=2, num_pages=64)
    simulator = Simulator(Engine(CONFIG), route, SlowLink((1.0, 1.0)), link_latency_s=5.0)
    done = simulator.run([Arrival(at_s=0.0, spec=make_spec("a", 192))])
    assert [each.spans[1].start_s for each in done.microbatches] == [169.0, 269.0, 369.0]
