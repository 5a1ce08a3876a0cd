"""Plays a workload against a mesh: warm-up, then run after run, each with its figures."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from chunkmesh.bench.figures import failure_counts, figures
from chunkmesh.bench.load import Load, LoadPlan, LoadResult
from chunkmesh.bench.origin import origin
from chunkmesh.bench.result import BenchResult, BenchRun
from chunkmesh.cli.bench_flags import DatasetOptions, LoadOptions
from chunkmesh.cli.bench_workload import Workload, make_workload, requests_of
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.message_json import fields_of
from chunkmesh.errors import ConfigError, Unavailable
from chunkmesh.retrying import Servers
from chunkmesh.v1 import generation_pb2 as pb

_PROGRESS_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What figures are made."""

    percentiles: Sequence[float]
    targets: Mapping[str, float]
    """Of goodput, in ms; empty without."""


def serve_workload(
    servers: Servers, dataset: DatasetOptions, load: LoadOptions, measures: Measures
) -> BenchResult:
    """Play a workload as often as asked; Ctrl-C ends the run that is played, and is the last.

    Raises:
        ChunkMeshError: the mesh does not answer or is not ready, or a warm-up failed.
    """
    with GenerationClient(servers) as client:
        model, info = client.model_info(), client.server_info()
        _check(model, info)
        workload = make_workload(dataset, load, model)
        _warm_up(client, workload, load)
    runs = []
    for _ in range(load.num_runs):
        played = asyncio.run(_play(servers, workload, load))
        runs.append(_measured(played, measures))
        if played.end == "interrupted":
            break
    return BenchResult(
        origin={**origin()},
        workload=workload.description,
        goodput_ms=measures.targets,
        model=fields_of(model),
        server=fields_of(info),
        runs=tuple(runs),
    )


def _check(model: pb.GetModelInfoResponse, info: pb.GetServerInfoResponse) -> None:
    """Refuse a mesh that cannot serve; warn of one that serves others."""
    if not info.ready:
        raise Unavailable(f"the mesh is not ready: {info.reason}")
    if model.vocab_size <= len(model.eos_token_ids):
        raise ConfigError(f"the model's vocabulary has {model.vocab_size} ids: nothing to send")
    num_requests = info.num_requests_running + info.num_requests_waiting
    if num_requests:
        sys.stderr.write(f"warning: {num_requests} requests of others run or wait on this mesh\n")


def _warm_up(client: GenerationClient, workload: Workload, load: LoadOptions) -> None:
    """Send the first prompts under a salt of their own, so that no run finds them cached."""
    prompts = [workload.prompts[index % len(workload.prompts)] for index in range(load.num_warmups)]
    for request in requests_of(prompts, load, salt=_new_salt()):
        with closing(client.generate(request, timeout_s=load.request_timeout)) as replies:
            for _ in replies:
                pass


async def _play(servers: Servers, workload: Workload, load: LoadOptions) -> LoadResult:
    salt = _new_salt() if load.cache_salt is None else load.cache_salt
    plan = LoadPlan(
        requests=requests_of(workload.prompts, load, salt=salt),
        due_s=workload.due_s,
        max_concurrency=load.max_concurrency,
        duration_s=load.duration,
        request_timeout_s=load.request_timeout,
    )
    progress = _Progress(len(plan.requests))
    played = await Load(servers, plan, progress.show).play()
    progress.clear()
    return played


def _measured(played: LoadResult, measures: Measures) -> BenchRun:
    return BenchRun(
        end=played.end,
        figures=figures(
            played.records,
            duration_s=played.duration_s,
            percentiles=measures.percentiles,
            targets=measures.targets,
        ),
        failures=failure_counts(played.records),
        lag=played.lag,
        records=played.records,
    )


def _new_salt() -> str:
    return f"bench {secrets.token_hex(8)}"


class _Progress:
    """Counts ended requests on a terminal, seldom enough to cost nothing."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_shown = sys.stderr.isatty()
        self._next_s = 0.0

    def show(self, num_ended: int) -> None:
        """Write the count over the last one."""
        if self._is_shown and time.monotonic() >= self._next_s:
            sys.stderr.write(f"\r{num_ended}/{self._number} requests")
            sys.stderr.flush()
            self._next_s = time.monotonic() + _PROGRESS_S

    def clear(self) -> None:
        """Leave an empty line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
