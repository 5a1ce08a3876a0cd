"""Puts a stage worker together and runs it: weights, data plane, page I/O, health and side door."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import structlog
import torch

from chunkmesh import __version__, side_door
from chunkmesh.cache_folder import user_cache_folder
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.kv_login import login_of
from chunkmesh.kv_store import KvStore
from chunkmesh.side_door import Readiness
from chunkmesh.transports.create import create
from chunkmesh.trust.access import Door, Role
from chunkmesh.trust.guard import Guard
from stage_worker.device import choose_device
from stage_worker.device_start import DeviceLimits, DeviceStart
from stage_worker.host_pages import HostPages
from stage_worker.kernel_cache import use_kernel_cache
from stage_worker.model_stage import load_stage
from stage_worker.paged.load import load_paged_stage
from stage_worker.place import NOWHERE, Duty
from stage_worker.settings import WorkerSettings
from stage_worker.stage import Stage
from stage_worker.start_profile import KeptProfile, profile_limits
from stage_worker.start_thread import unless_stopped
from stage_worker.weight_choice import WeightChoice
from stage_worker.worker import Capacity, Worker

_log = structlog.get_logger(__name__)
_SERVER_THREADS = 2
"""I/O threads for each server of the page store: one waits for it while the other checks."""
_MAX_IO_THREADS = 8
_ALMOST = 0.99
"""Most that /ready says before the stage stands."""
_CPU_TOKENS = 16384
"""KV capacity of a stage on a CPU that was not told one."""


@dataclasses.dataclass(slots=True)
class _Progress:
    """How far start-up has come, for /ready."""

    loaded: float = 0.0
    """Share of the weights that is loaded, 0 <= loaded <= 1."""
    device_start: DeviceStart | None = None
    """What a stage on a GPU does next."""
    profile: KeptProfile | None = None
    """What is measured after that, if it is."""
    worker: Worker | None = None
    """Who looks for a scheduler after that."""

    def readiness(self) -> Readiness:
        """Answer /ready."""
        place = NOWHERE if self.worker is None else self.worker.place
        if place.duty is not Duty.NONE:
            return Readiness(ready=place.is_ready, state=place.duty.value, reason=place.reason)
        if self.loaded < 1:
            reason = "weights are being loaded"
            return Readiness(ready=False, state="loading", reason=reason, progress=self.loaded)
        for step in (self.device_start, self.profile):
            begun = None if step is None else step.readiness()
            if begun is not None:
                return begun
        reason = (self.worker and self.worker.lost_reason) or place.reason
        return Readiness(ready=False, state=place.duty.value, reason=reason, progress=1.0)


async def serve(settings: WorkerSettings, stop: asyncio.Event) -> None:
    """Run a stage worker until stop is set and the mesh has let it go.

    Raises:
        ConfigError: model, layers or an address do not do, or the scheduler refuses this worker.
    """
    progress = _Progress()
    mesh = settings.mesh_tls(Role.WORKER)
    health = GrpcServer(guard=Guard(door=Door.WORKER, tls=mesh, is_mutual=mesh is not None))
    if mesh is not None and settings.transport == "ucx" and not settings.data_address.is_loopback:
        _log.warning(
            "activations are not encrypted: the network of UCX must be private",
            data_address=str(settings.data_address),
            remedy="--transport grpc; see docs/security.md",
        )
    async with contextlib.AsyncExitStack() as stack:
        app = side_door.app(
            readiness=progress.readiness,
            info=lambda: {
                "service": "stage_worker",
                "version": __version__,
                "layers": str(settings.layers),
                "data_address": str(settings.data_address),
            },
        )
        await stack.enter_async_context(side_door.listening(app, settings.listen("http_port")))
        await stack.enter_async_context(health.listening(settings.listen("port"), grace_s=0))
        loaded = await unless_stopped(stop, lambda: _load(settings, progress))
        if loaded is None:
            return
        stage, capacity = loaded
        device = torch.device(stage.description.device)
        worker = Worker(
            stage=stage,
            transport=create(
                settings.transport, str(settings.data_address), device=device, tls=mesh
            ),
            stores=_stores(settings),
            capacity=capacity,
            peer=None if settings.peer is None else str(settings.peer),
            on_ready=health.set_serving,
        )
        progress.worker = worker
        progress.profile = _profile(settings, stage, capacity.kv_tokens)
        serving = worker.run(settings.scheduler, progress.profile, mesh)
        await _until(stop, serving, _leave(worker, settings.drain_timeout))


async def _until(
    stop: asyncio.Event, work: Coroutine[Any, Any, None], farewell: Coroutine[Any, Any, None]
) -> None:
    """Run work until it ends, or stop is set and the farewell is over."""

    async def stopping() -> None:
        await stop.wait()
        await farewell

    tasks = [asyncio.create_task(each) for each in (work, stopping())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        farewell.close()


async def _leave(worker: Worker, timeout_s: float) -> None:
    """Let the mesh do without a worker, but do not wait for ever."""
    try:
        async with asyncio.timeout(timeout_s):
            await worker.leave()
    except TimeoutError:
        _log.warning("left without being let go", waited_s=timeout_s)


def _stores(settings: WorkerSettings) -> list[KvStore]:
    """Make one client of the page store for each I/O thread."""
    if not settings.redis_url:
        return []
    login = login_of(settings)
    num_threads = min(_SERVER_THREADS * len(settings.redis_url), _MAX_IO_THREADS)
    return [KvStore(*settings.redis_url, login=login) for _ in range(num_threads)]


def _host_pages(settings: WorkerSettings, stage: Stage, capacity_tokens: int) -> HostPages:
    """Take the host memory for pages; to pin much of it takes seconds."""
    description = stage.description
    num_bytes = settings.host_bytes(capacity_tokens * description.kv_bytes_per_token)
    return HostPages(num_bytes, pinned=description.device != "cpu")


def _profile(settings: WorkerSettings, stage: Stage, capacity_tokens: int) -> KeptProfile | None:
    """Prepare to measure the stage, unless that is off."""
    if settings.profile == "off":
        return None
    device = stage.description.device
    limits = profile_limits(
        device=device,
        tokens=settings.profile_tokens,
        kv_capacity_tokens=capacity_tokens,
        timeout_s=settings.profile_timeout,
    )
    folder = settings.profile_dir or _cache_folder() / "profiles"
    return KeptProfile(limits, folder=folder, device=device, threads=settings.threads)


def _cache_folder() -> Path:
    return user_cache_folder() / "chunkmesh"


def _load(settings: WorkerSettings, progress: _Progress) -> tuple[Stage, Capacity]:
    """Load the weights, make the stage ready and take its memory; on a thread."""
    stage, capacity_tokens = _load_stage(settings, progress)
    host = _host_pages(settings, stage, capacity_tokens)
    return stage, Capacity(kv_tokens=capacity_tokens, host=host)


def _load_stage(settings: WorkerSettings, progress: _Progress) -> tuple[Stage, int]:
    """Load the weights and make the stage ready. Returns the KV capacity too."""

    def on_progress(done: int, total: int) -> None:
        progress.loaded = min(done / total, _ALMOST)

    device = choose_device(settings.device)
    layers = range(settings.layers.first, settings.layers.last)
    choice = WeightChoice(load_format=settings.load_format, quantization=settings.quantization)
    if device.type == "cpu":
        stage = load_stage(
            settings.model_path,
            layers=layers,
            num_threads=settings.threads,
            dtype=settings.dtype,
            choice=choice,
            progress=on_progress,
        )
        progress.loaded = 1.0
        return stage, settings.max_total_tokens or _CPU_TOKENS
    kernels = _cache_folder() / "kernels"
    use_kernel_cache(kernels)
    paged_stage = load_paged_stage(
        settings.model_path,
        layers=layers,
        device=device,
        dtype=settings.dtype,
        choice=choice,
        progress=on_progress,
    )
    limits = DeviceLimits(
        warmup_mode=settings.warmup_mode,
        cuda_graph_max_bs=settings.cuda_graph_max_bs,
        mem_fraction=settings.mem_fraction,
        max_total_tokens=settings.max_total_tokens,
    )
    progress.device_start = DeviceStart(limits, paged_stage, kernels)
    progress.loaded = 1.0
    return paged_stage, progress.device_start.prepare()
