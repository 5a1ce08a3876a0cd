"""The command `chunkmesh tune`: finds the chunks that suit a mesh which runs, by measuring."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.exits import reported
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.cli.output import output_console
from chunkmesh.cli.server_options import ServerOptions
from chunkmesh.errors import ConfigError, Unavailable
from chunkmesh.layers import LayerRange
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.latency_model import PipelineLatency
from scheduler.latency_terms import told_latency
from scheduler.planning.token_text import parse_counts
from scheduler.tuning.advice import PartitionAdvice, advise
from scheduler.tuning.candidates import Candidate, TuneLimits, as_it_runs
from scheduler.tuning.measure import NotMeasured, PromptRuns
from scheduler.tuning.race import Standing, TunedRun
from scheduler.tuning.report import Tuned, as_json, print_tuned
from scheduler.tuning.tuner import TuneBudget, Tuner

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def tune(
    *,
    to: ServerOptions,
    tokens: Annotated[
        str, typer.Option(metavar="N", help="Length of the prompts, such as 2048 or 128K.")
    ] = "2048",
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Stop measuring after this time.")
    ] = 120.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure on an idle mesh which chunks are fastest, and print the flags to set."""
    address = to.address()
    with reported():
        counts = parse_counts(tokens, flag="--tokens", most=1 << 24)
        if len(counts) != 1:
            raise ConfigError(f"--tokens {tokens}: give one length")
        with GenerationClient(address, to.access()) as client:
            tuned = _tune(client, counts[0], budget)
        if json_output:
            print(as_json(tuned))
        else:
            print_tuned(output_console(), tuned)


def _tune(client: GenerationClient, prompt_tokens: int, budget_s: float) -> Tuned:
    """Run all steps.

    Raises:
        ChunkMeshError: the mesh is not ready, busy, or fails.
    """
    info, model = client.server_info(), client.model_info()
    _check(info, model, prompt_tokens)
    limits = TuneLimits(
        prompt_tokens=prompt_tokens,
        max_tokens=info.chunked_prefill_tokens,
        page_tokens=info.page_tokens,
        context_tokens=model.context_length,
    )
    prompts = PromptRuns(client, prompt_tokens=prompt_tokens, vocab_size=model.vocab_size)
    tuner = Tuner(prompts.run, TuneBudget(budget_s=budget_s), _show_run)
    latency = latency_of(info)
    tuner.tune(limits, latency, as_it_runs(info.chunk_strategy, info.chunked_prefill_tokens))
    standings = tuner.race.standings()
    winner = tuner.race.winner()
    if winner is None:
        raise NotMeasured(f"no prompt was measured within {budget_s:g} s: give a longer --budget")
    return Tuned(
        limits=limits,
        standings=tuple(standings),
        winner=winner,
        tied=tuple(tuner.race.tied()),
        dropped=tuple(tuner.race.dropped()),
        partition=_advise(info, winner, latency),
        is_cut_short=tuner.is_cut_short,
        latency_reason="" if latency is not None else _latency_reason(info),
    )


def _check(
    info: pb.GetServerInfoResponse, model: pb.GetModelInfoResponse, prompt_tokens: int
) -> None:
    """Refuse what would measure something else."""
    if not info.ready:
        raise Unavailable(f"the mesh is not ready: {info.reason}")
    num_requests = info.num_requests_running + info.num_requests_waiting
    if num_requests:
        raise Unavailable(
            f"{num_requests} requests run or wait: their work would be measured too; tune a mesh"
            " that is idle"
        )
    if prompt_tokens >= model.context_length:
        raise ConfigError(
            f"--tokens {prompt_tokens}: the context holds {model.context_length}, and one token"
            " must be left"
        )


def latency_of(info: pb.GetServerInfoResponse) -> PipelineLatency | None:
    """Return the latency of the stages; None unless all are known and accepted."""
    stages = [
        told_latency(fit.terms) for fit in info.fits if fit.HasField("terms") and not fit.refused
    ]
    return PipelineLatency(tuple(stages)) if stages and len(stages) == len(info.fits) else None


def _latency_reason(info: pb.GetServerInfoResponse) -> str:
    refused = [f"stage {n}: {fit.refused}" for n, fit in enumerate(info.fits) if fit.refused]
    return "; ".join(refused) or "the latency of the stages is not known"


def _advise(
    info: pb.GetServerInfoResponse, winner: Standing, latency: PipelineLatency | None
) -> PartitionAdvice | None:
    """Return a better split of the layers, if there is one."""
    ranges = _ranges(info)
    runs_ms = [run.stage_ms for run in winner.runs if len(run.stage_ms) == len(ranges)]
    if not runs_ms:
        return None
    edges_ms = [0.0] * len(ranges)
    if latency is not None:
        edges_ms = [winner.runs[-1].num_chunks * stage.edge_ms for stage in latency.stages]
    return advise(ranges, runs_ms, edges_ms)


def _ranges(info: pb.GetServerInfoResponse) -> Sequence[LayerRange]:
    """Return the layers of each stage, by stage."""
    on_route = [worker for worker in info.workers if worker.HasField("stage_index")]
    on_route.sort(key=lambda worker: worker.stage_index)
    return [LayerRange(first=each.layers.first, last=each.layers.last) for each in on_route]


def _show_run(candidate: Candidate, run: TunedRun) -> None:
    """Tell on standard error what goes on."""
    sys.stderr.write(f"{candidate.name}: {run.num_chunks} chunks, {run.ttft_ms:.0f} ms\n")
