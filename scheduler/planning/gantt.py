"""Plans as chunks over stages and time: lanes of text, and panels of a picture."""

from __future__ import annotations

from chunkmesh.cli.timeline import Step, Timeline, Work
from chunkmesh.cli.timeline_text import draw_lanes
from chunkmesh.errors import ConfigError
from scheduler.planning.plan import Plan
from scheduler.planning.report import parameters_text
from scheduler.simulator import SimulatedMicrobatch, Simulation


def lanes(plan: Plan, *, width: int) -> str:
    """Return a title and a lane for each stage.

    Raises:
        ConfigError: the plan was too large to simulate.
    """
    return f"{title(plan)}\n{draw_lanes(timeline(plan), width)}"


def title(plan: Plan) -> str:
    """Say in a line what is shown."""
    return (
        f"{plan.cuts.strategy.value} ({parameters_text(plan)}), {plan.load.prompt_tokens} tokens:"
        f" {len(plan.chunk_tokens)} chunks, TTFT {plan.ttft_ms / 1000:.3f} s,"
        f" bubble {plan.bubble_ratio:.1%}"
    )


def timeline(plan: Plan) -> Timeline:
    """Return what the stages did in a simulated plan.

    Raises:
        ConfigError: it was too large to simulate.
    """
    if plan.simulation is None:
        raise ConfigError(
            f"--picture and --lanes: {plan.cuts.strategy.value} has {plan.cuts.num_chunks} chunks"
            f" of {plan.load.total_tokens} tokens on {plan.cluster.num_stages} stages, too many to"
            " draw; choose fewer --tokens, --num-requests or --strategy"
        )
    return _timeline(plan.simulation)


def _timeline(simulation: Simulation) -> Timeline:
    return Timeline(
        num_stages=simulation.num_stages,
        cached_tokens=0,
        chunks=tuple(map(_step, simulation.microbatches)),
        decode=(),
    )


def _step(simulated: SimulatedMicrobatch) -> Step:
    return Step(
        start=simulated.microbatch.entries[0].start,
        num_tokens=simulated.microbatch.num_tokens,
        work=tuple(
            Work(
                stage_index=stage,
                ready_s=span.ready_s,
                start_s=span.start_s,
                end_s=span.end_s,
                sent_s=span.sent_s,
            )
            for stage, span in enumerate(simulated.spans)
        ),
    )
