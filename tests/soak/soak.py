"""A mesh of real processes under clients of all manners, for as long as one likes.

Faults may be injected meanwhile, see tests.soak.faults. Before the first count of memory everything
has run once, so that what grows then, grows.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2, hicache_pb2_grpc
from tests.soak.answers import Known, known_prompts
from tests.soak.clients import play_on
from tests.soak.faults import FAULTS
from tests.soak.tally import Tally
from tests.standby_mesh import HiCache, Shape, StandbyMesh
from tests.valkey import running_valkey

NUM_CLIENTS = 16
_REDIS_BYTES = 64 << 20
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
            f"- calls made again: {tally.num_retried}",
            f"- streams cut by loss of the scheduler or of all workers of a stage: {tally.num_cut}",
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
    faults: Sequence[str] = (),
    fault_every_s: float = 3.0,
    seed: int = 1,
) -> Report:
    """Run two of everything over one Valkey, and clients against it, for so long.

    Faults are names of FAULTS.
    """
    known = known_prompts(model, seed)
    shape = Shape(
        layers=("0-1", "2-3", "0-1", "2-3"),
        num_hicaches=2,
        scheduler_flags=(
            *("--chunked-prefill-size=64", "--max-running-requests=8", "--load-min-tokens=0"),
            *("--max-queued-requests=32", "--max-unread-bytes=8192", "--unread-timeout=8"),
            "--request-timeout=100",
        ),
        worker_flags=("--max-total-tokens=4096",),
        hicache_flags=(f"--max-bytes={_REDIS_BYTES * 3 // 4}",),
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_valkey(Path(scratch), max_bytes=_REDIS_BYTES) as valkey,
        StandbyMesh(model, valkey, Path(scratch), shape).running() as mesh,
    ):
        return asyncio.run(
            _soak(mesh, known, seconds, warm_up_s, _Faults(faults, fault_every_s, seed))
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Faults:
    """Which are injected, how long after each other, and by what seed."""

    names: Sequence[str]
    every_s: float
    seed: int

    async def inject(self, mesh: StandbyMesh, tally: Tally, stop: asyncio.Event) -> None:
        """Inject one after the other until told to stop: all once, in any order, then again."""
        chance = random.Random(self.seed)  # noqa: S311 -- a seeded test
        left: list[str] = []
        while self.names and not await _stopped(stop, self.every_s * (0.5 + chance.random())):
            left = left or chance.sample(self.names, len(self.names))
            name = left.pop()
            tally.faults[name] += 1
            if FAULTS[name].may_cut:
                tally.cuts_s.append(time.monotonic())
            await asyncio.to_thread(FAULTS[name].inject, mesh, chance)
            if FAULTS[name].may_cut:
                tally.cuts_s.append(time.monotonic())


async def _soak(
    mesh: StandbyMesh, known: Sequence[Known], seconds: float, warm_up_s: float, faults: _Faults
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
    assert all(each.is_up() for each in mesh.services.values()), mesh.logs()
    return Report(
        seconds=took_s,
        tally=tally,
        rss_before=rss_before,
        rss_after=_memory(mesh),
        rest_before=rest_before,
        rest_after=rest_after,
    )


async def _play(
    mesh: StandbyMesh, known: Sequence[Known], seconds: float, tally: Tally, faults: _Faults
) -> None:
    """Let clients play for so long, and to the end of what they began."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for index in range(NUM_CLIENTS):
            seed = 1000 * faults.seed + index
            tasks.create_task(play_on(mesh.servers(), known, seed, tally, stop))
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


async def _come_to_rest(mesh: StandbyMesh) -> Rest:
    """Wait until nothing of any request is left, but not for ever; return what is."""
    deadline_s = time.monotonic() + _REST_S
    while not (rest := await _rest(mesh)).is_at_rest() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.0)  # Tasks that end their calls are a moment behind.
    return dataclasses.replace(rest, tasks=(await _rest(mesh)).tasks)


async def _rest(mesh: StandbyMesh) -> Rest:
    """Ask what is held now."""
    active = mesh.active
    leases = [await _num_leases(each) for each in mesh.hicaches]
    async with grpc.aio.insecure_channel(str(active.users)) as to_scheduler:
        scheduler = generation_pb2_grpc.GenerationStub(to_scheduler)
        info = await scheduler.GetServerInfo(pb.GetServerInfoRequest(), timeout=30)
    metrics = await asyncio.to_thread(_metrics, f"127.0.0.1:{active.http_port}")
    return Rest(
        pages_held=info.num_pages - info.free_pages,
        requests=info.num_requests_running + info.num_requests_waiting,
        microbatches=info.num_microbatches_in_flight,
        leases=max(leases),
        open_calls=int(metrics["chunkmesh_open_calls"]),
        tasks=int(metrics["chunkmesh_tasks"]),
    )


async def _num_leases(hicache: HiCache) -> int:
    """Ask one replica."""
    async with grpc.aio.insecure_channel(str(hicache.address)) as link:
        stub = hicache_pb2_grpc.HiCacheStub(link)
        stats = await stub.GetStats(hicache_pb2.GetStatsRequest(), timeout=30)
        return stats.num_leases


def _metrics(side_door: str) -> dict[str, float]:
    """Read the scheduler's metrics that have no labels."""
    with urllib.request.urlopen(f"http://{side_door}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.split(" ") for line in lines if not line.startswith("#") and "{" not in line)
    return {name: float(value) for name, value in pairs}


def _memory(mesh: StandbyMesh) -> dict[str, int]:
    """Return what each process holds of memory, in bytes."""
    return {name: each.memory_bytes() for name, each in mesh.services.items()}
