"""A mesh of real processes under clients of all manners, for as long as one likes.

Faults may be injected meanwhile: each is a function that does something to the mesh and says what
it was. Before the first count of memory everything has run once, so that what grows then, grows.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import grpc
import psutil

from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2_grpc
from chunkmesh.v1 import hicache_pb2 as hicache
from tests.soak.answers import Known, known_prompts
from tests.soak.clients import play_on
from tests.soak.tally import Tally

Fault: TypeAlias = Callable[[LocalMesh, random.Random], str]
"""Does something to a mesh that it has to get over; returns its name."""

NUM_CLIENTS = 16
_REST_S = 90.0
"""Time to come to rest: leases run out by themselves if their release got lost."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What a mesh holds that has nothing to do."""

    pages_held: int
    requests: int
    """That wait or run."""
    microbatches: int
    leases: int
    open_calls: int
    tasks: int
    """Of the scheduler's loop: those of a mesh that never had a request, and no more."""

    def is_at_rest(self) -> bool:
        """Whether nothing of any request is left, tasks aside."""
        counts = (self.pages_held, self.requests, self.microbatches, self.leases, self.open_calls)
        return not any(counts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a soak found."""

    seconds: float
    tally: Tally
    rss_before: Mapping[str, int]
    """Bytes of each process after warming up."""
    rss_after: Mapping[str, int]
    rest_before: Rest
    """Before the first request."""
    rest_after: Rest

    def table(self) -> str:
        """Write everything as Markdown."""
        tally = self.tally
        kinds = sorted({kind for kind, _ in tally.outcomes})
        lines = ["| client | requests | ends |", "| --- | ---: | --- |"]
        for kind in kinds:
            ends = {end: n for (each, end), n in sorted(tally.outcomes.items()) if each == kind}
            told = ", ".join(f"{end} {n}" for end, n in ends.items())
            lines.append(f"| {kind} | {sum(ends.values())} | {told} |")
        faults = ", ".join(f"{name} {n}" for name, n in sorted(tally.faults.items())) or "none"
        lines += [
            "",
            "| process | MiB after warm-up | MiB at the end |",
            "| --- | ---: | ---: |",
            *(
                f"| {name} | {rss / 2**20:.1f} | {self.rss_after.get(name, 0) / 2**20:.1f} |"
                for name, rss in self.rss_before.items()
            ),
            "",
            f"- {tally.num_requests} requests in {self.seconds:.0f} s, faults injected: {faults}",
            f"- unexpected ends: {len(tally.unexpected)} {tally.unexpected[:5]}",
            f"- tokens compared {tally.num_compared}, wrong {tally.num_wrong}",
            f"- held at the start: {self.rest_before}",
            f"- held at the end: {self.rest_after}",
        ]
        return "\n".join(lines)


def run_soak(
    model: Path,
    seconds: float,
    *,
    warm_up_s: float,
    faults: Sequence[Fault] = (),
    fault_every_s: float = 20.0,
    seed: int = 1,
) -> Report:
    """Run a mesh of two stages with a cache, and clients against it, for so long."""
    known = known_prompts(model, seed)
    options = MeshOptions(
        model_path=model,
        page_tokens=16,
        chunked_prefill_tokens=64,
        redis_max_bytes=64 << 20,
        scheduler_flags=(
            *("--max-running-requests=8", "--max-queued-requests=32", "--load-min-tokens=0"),
            *("--max-unread-bytes=8192", "--unread-timeout=8", "--request-timeout=100"),
        ),
        worker_flags=("--max-total-tokens=4096", "--profile=off"),
    )
    with LocalMesh(options) as mesh:
        return asyncio.run(
            _soak(mesh, known, seconds, warm_up_s, _Faults(faults, fault_every_s, seed))
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Faults:
    """Which are injected, how often, and by what seed."""

    faults: Sequence[Fault]
    every_s: float
    seed: int

    async def inject(self, mesh: LocalMesh, tally: Tally, stop: asyncio.Event) -> None:
        """Inject one after the other until told to stop."""
        chance = random.Random(self.seed)  # noqa: S311 -- a seeded test
        while self.faults and not await _stopped(stop, self.every_s):
            fault = chance.choice(self.faults)
            tally.faults[await asyncio.to_thread(fault, mesh, chance)] += 1


async def _soak(
    mesh: LocalMesh, known: Sequence[Known], seconds: float, warm_up_s: float, faults: _Faults
) -> Report:
    """Warm up, look, soak, let it rest, and look again."""
    rest_before = await _come_to_rest(mesh)
    await _play(mesh, known, warm_up_s, Tally(), _Faults((), 1.0, faults.seed + 1))
    await _come_to_rest(mesh)
    rss_before = _memory(mesh)
    started_s, tally = time.monotonic(), Tally()
    await _play(mesh, known, seconds, tally, faults)
    took_s = time.monotonic() - started_s
    rest_after = await _come_to_rest(mesh)
    if not faults.faults:
        mesh.check()
    return Report(
        seconds=took_s,
        tally=tally,
        rss_before=rss_before,
        rss_after=_memory(mesh),
        rest_before=rest_before,
        rest_after=rest_after,
    )


async def _play(
    mesh: LocalMesh, known: Sequence[Known], seconds: float, tally: Tally, faults: _Faults
) -> None:
    """Let clients play for so long, and to the end of what they began."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for index in range(NUM_CLIENTS):
            seed = 1000 * faults.seed + index
            tasks.create_task(play_on(mesh.scheduler_address, known, seed, tally, stop))
        tasks.create_task(faults.inject(mesh, tally, stop))
        await asyncio.sleep(seconds)
        stop.set()


async def _stopped(stop: asyncio.Event, within_s: float) -> bool:
    """Wait for the stop for so long; return whether it came."""
    try:
        async with asyncio.timeout(within_s):
            return await stop.wait()
    except TimeoutError:
        return False


async def _come_to_rest(mesh: LocalMesh) -> Rest:
    """Wait until nothing of any request is left, but not for ever; return what is."""
    deadline_s = time.monotonic() + _REST_S
    while not (rest := await _rest(mesh)).is_at_rest() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.0)  # Tasks that end their calls are a moment behind.
    return dataclasses.replace(rest, tasks=(await _rest(mesh)).tasks)


async def _rest(mesh: LocalMesh) -> Rest:
    """Ask what is held now."""
    cache = mesh.endpoints.hicache
    assert cache is not None
    async with (
        grpc.aio.insecure_channel(mesh.scheduler_address) as to_scheduler,
        grpc.aio.insecure_channel(str(cache.grpc)) as to_cache,
    ):
        scheduler = generation_pb2_grpc.GenerationStub(to_scheduler)
        info = await scheduler.GetServerInfo(pb.GetServerInfoRequest(), timeout=30)
        stats = await hicache_pb2_grpc.HiCacheStub(to_cache).GetStats(
            hicache.GetStatsRequest(), timeout=30
        )
    metrics = await asyncio.to_thread(_metrics, str(mesh.endpoints.side_door))
    return Rest(
        pages_held=info.num_pages - info.free_pages,
        requests=info.num_requests_running + info.num_requests_waiting,
        microbatches=info.num_microbatches_in_flight,
        leases=stats.num_leases,
        open_calls=int(metrics["chunkmesh_open_calls"]),
        tasks=int(metrics["chunkmesh_tasks"]),
    )


def _metrics(side_door: str) -> dict[str, float]:
    """Read the scheduler's metrics that have no labels."""
    with urllib.request.urlopen(f"http://{side_door}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.split(" ") for line in lines if not line.startswith("#") and "{" not in line)
    return {name: float(value) for name, value in pairs}


def _memory(mesh: LocalMesh) -> dict[str, int]:
    """Return what each process holds of memory, in bytes."""
    return {each.name: psutil.Process(each.pid).memory_info().rss for each in mesh.processes()}
