"""Puts a scheduler together and runs it: control loop, two gRPC ports and the side door."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog
from pydantic import JsonValue

from chunkmesh import __version__, side_door
from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError, Unavailable, reason_of
from chunkmesh.grpc_client import Access, RenewedChannel
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.side_door import Readiness
from chunkmesh.trust.identity import current_identity
from chunkmesh.v1 import generation_pb2_grpc, stage_pb2_grpc
from scheduler.attach_service import AttachService
from scheduler.cache_secret import read_cache_secret
from scheduler.candidate import Candidate
from scheduler.control_loop import ControlLoop
from scheduler.engine_config import EngineConfig
from scheduler.generation_service import GenerationService
from scheduler.guards import make_guards
from scheduler.hicache_client import HiCacheClient
from scheduler.intake import Intake
from scheduler.latency_file import LatencyFile, parse_latency_file
from scheduler.leadership import AnyLeadership
from scheduler.model_files import ModelFiles, read_model_files
from scheduler.open_calls import CallLimits, OpenCalls
from scheduler.page_keying import PageKeying
from scheduler.prospect import Patience
from scheduler.server_info import ServedModel
from scheduler.settings import SchedulerSettings
from scheduler.stage_fit import check_covers
from scheduler.standby import RETRY_S
from scheduler.succession import deeds, new_candidate
from scheduler.tokenizer import Tokenizer
from scheduler.validation import MAX_PRIORITY, Door
from scheduler.workers import WorkerLimits

_log = structlog.get_logger(__name__)
_ATTACH_GRACE_S = 1.0
"""Time for Attach streams to end by themselves once their workers are given up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningScheduler:
    """A scheduler that listens."""

    address: HostPort
    """Users' port."""
    internal_address: HostPort
    """Port for stage workers."""
    http_address: HostPort
    control_loop: ControlLoop
    open_calls: OpenCalls


async def serve(settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Run a scheduler until stop is set and the running requests have ended."""
    async with running(settings):
        await stop.wait()


@contextlib.asynccontextmanager
async def running(settings: SchedulerSettings) -> AsyncIterator[RunningScheduler]:
    """Run a scheduler while inside; on leaving, running requests get drain_timeout to end.

    Raises:
        ConfigError: the model folder, a file or an address does not do.
    """
    async with contextlib.AsyncExitStack() as stack:
        parts = _assemble(settings, stack)
        loop, users, service = parts.loop, parts.users, parts.service
        internal_address = await stack.enter_async_context(
            parts.internal.listening(settings.listen("internal_port"), grace_s=_ATTACH_GRACE_S)
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for watch in (tasks.create_task(loop.run()), tasks.create_task(parts.calls.run())):
            stack.callback(watch.cancel)
        address = await stack.enter_async_context(users.listening(settings.listen("port")))
        bound: dict[str, JsonValue] = {"grpc": str(address), "internal": str(internal_address)}
        app = side_door.app(
            readiness=lambda: _readiness(loop, service, parts.candidate.leadership),
            info=lambda: {"service": "scheduler", "version": __version__, "addresses": bound},
        )
        http = await stack.enter_async_context(
            side_door.listening(app, settings.listen("http_port"))
        )
        stack.callback(loop.workers.close)
        await stack.enter_async_context(
            parts.candidate.standing(users=address.port, workers=internal_address.port)
        )
        yield RunningScheduler(
            address=address,
            internal_address=internal_address,
            http_address=http,
            control_loop=loop,
            open_calls=parts.calls,
        )
        service.draining = True
        users.set_serving(serving=False)
        await _drain(loop, settings.drain_timeout)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a scheduler consists of, before it listens."""

    users: GrpcServer
    internal: GrpcServer
    loop: ControlLoop
    candidate: Candidate
    calls: OpenCalls
    service: GenerationService


def _assemble(settings: SchedulerSettings, stack: contextlib.AsyncExitStack) -> _Parts:
    """Put the parts together; the client of hicache is closed with the stack.

    Raises:
        ConfigError: the model folder or a file does not do.
    """
    files = read_model_files(settings.model_path)
    latency_file = _latency_file(settings.latency_model, files.num_layers)
    context_length = settings.context_length or files.context_length
    guards = make_guards(settings)
    hicache = _hicache(settings, guards.hicache, stack)
    users = GrpcServer(
        "chunkmesh.v1.Generation", guard=guards.users, max_connections=settings.max_connections
    )
    internal = GrpcServer("chunkmesh.v1.StageControl", guard=guards.internal)

    def on_ready(ready: bool) -> None:
        users.set_serving(serving=ready and not service.draining)

    config = _engine_config(settings, context_length)
    loop = _control_loop(settings, files, config, hicache, on_ready)
    candidate = new_candidate(settings, deeds(loop, internal))
    calls = OpenCalls(_call_limits(settings), user_of=lambda: current_identity().tenant)
    service = GenerationService(
        control_loop=loop,
        intake=_intake(settings, files, context_length),
        model=ServedModel(name=_model_name(settings), files=files, context_length=context_length),
        hicache=hicache,
        leadership=candidate.leadership,
        calls=calls,
    )
    generation_pb2_grpc.add_GenerationServicer_to_server(service, users.server)
    attach = AttachService(loop, latency_file, candidate)
    stage_pb2_grpc.add_StageControlServicer_to_server(attach, internal.server)
    return _Parts(
        users=users,
        internal=internal,
        loop=loop,
        candidate=candidate,
        calls=calls,
        service=service,
    )


def _model_name(settings: SchedulerSettings) -> str:
    """Return the name under which the model is served."""
    return settings.served_model_name or settings.model_path.resolve().name


def _engine_config(settings: SchedulerSettings, context_length: int) -> EngineConfig:
    """Pick what the engine has to know."""
    return EngineConfig(
        page_tokens=settings.page_size,
        chunked_prefill_tokens=settings.chunked_prefill_size,
        pp_async_batch_depth=settings.pp_async_batch_depth,
        decode_groups=settings.decode_groups,
        max_running_requests=settings.max_running_requests,
        max_queued_requests=settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
        max_running_requests_per_user=settings.max_running_requests_per_user,
        max_queued_requests_per_user=settings.max_queued_requests_per_user,
        max_queued_tokens_per_user=settings.max_queued_tokens_per_user,
        max_microbatch_requests=settings.pp_max_micro_batch_size,
        load_policy=settings.load_policy,
        load_timeout_s=settings.load_timeout_ms / 1000,
        load_timeout_s_per_1k_tokens=settings.load_timeout_ms_per_1k_tokens / 1000,
        load_min_tokens=settings.load_min_tokens,
        max_outstanding_stores=settings.max_outstanding_stores,
        write_policy=settings.hicache_write_policy,
        enable_prefix_caching=settings.enable_prefix_caching,
        stage_deadline_floor_s=settings.stage_deadline_floor,
        chunk_strategy=settings.wanted_strategy,
        is_default_strategy=not settings.names_strategy,
        dynamic_smooth_factor=settings.dynamic_chunking_smooth_factor,
        max_chunk_ms=settings.max_chunk_ms or None,
        context_tokens=context_length,
    )


def _call_limits(settings: SchedulerSettings) -> CallLimits:
    """Return what open calls may be at most.

    Twice what can wait and run, for those that are read or whose client is still to take the end;
    and twice that for all users, so that no single one keeps the others out.
    """
    per_user = 2 * (settings.max_running_requests + settings.max_queued_requests)
    return CallLimits(
        max_calls_per_user=per_user,
        max_calls=2 * per_user,
        max_unread_bytes=settings.max_unread_bytes,
        unread_timeout_s=settings.unread_timeout,
        request_timeout_s=settings.request_timeout,
    )


def _hicache(
    settings: SchedulerSettings, access: Access, stack: contextlib.AsyncExitStack
) -> HiCacheClient | None:
    """Reach for the prefix cache while stack is open; None without one."""
    if settings.hicache_url is None:
        return None
    channel = RenewedChannel(settings.hicache_url, access)
    stack.push_async_callback(channel.close)
    return HiCacheClient(channel.current, model=_model_name(settings))


def _control_loop(
    settings: SchedulerSettings,
    files: ModelFiles,
    engine_config: EngineConfig,
    hicache: HiCacheClient | None,
    on_ready: Callable[[bool], None],
) -> ControlLoop:
    """Make the control loop; on_ready hears when a route stands or breaks."""
    return ControlLoop(
        engine_config=engine_config,
        model_layers=files.num_layers,
        keying=_keying(settings, files),
        hicache=hicache,
        limits=WorkerLimits(
            silence_s=settings.worker_timeout,
            patience=Patience(
                takeover_s=settings.takeover_wait, announced_s=settings.drain_timeout
            ),
        ),
        on_ready=on_ready,
    )


def _keying(settings: SchedulerSettings, files: ModelFiles) -> PageKeying:
    """Return what goes into page keys here.

    Raises:
        ConfigError: --cache-secret-file cannot be read, or is no secret.
    """
    path = settings.cache_secret_file
    secret = b"" if path is None else read_cache_secret(path, name=f"--cache-secret-file {path}")
    return PageKeying(rope=files.rope, secret=secret)


def _latency_file(path: Path | None, num_layers: int) -> LatencyFile | None:
    """Read --latency-model, if it is given.

    Raises:
        ConfigError: it cannot be read, or is not of this model's layers.
    """
    if path is None:
        return None
    name = f"--latency-model {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {reason_of(error)}") from error
    file = parse_latency_file(text, name=name)
    check_covers(file, num_layers, name=name)
    return file


def _intake(settings: SchedulerSettings, files: ModelFiles, context_length: int) -> Intake:
    """Make what reads requests for this model."""
    max_priority = 0 if settings.knows_users else MAX_PRIORITY
    if settings.max_user_priority is not None:
        max_priority = settings.max_user_priority
    door = Door(
        vocab_size=files.vocab_size,
        context_length=context_length,
        eos_ids=files.eos_ids,
        defaults=files.sampling_defaults,
        max_user_priority=max_priority,
    )
    return Intake(Tokenizer(files, max_tokens=context_length), door)


def _readiness(
    loop: ControlLoop, service: GenerationService, leadership: AnyLeadership
) -> Readiness:
    """Answer /ready."""
    if service.draining:
        return Readiness(ready=False, state="draining", reason="the scheduler is shutting down")
    if reason := leadership.standby_reason():
        return Readiness(ready=False, state="standby", reason=reason)
    reason = loop.unready_reason()
    return Readiness(ready=not reason, state="waiting" if reason else "serving", reason=reason)


async def _drain(loop: ControlLoop, timeout_s: float) -> None:
    """Wait for the running requests to end, then for what is written back."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await loop.until_idle()
            await loop.write_back()
    if len(loop.requests):
        _log.warning("requests cut off by shutdown", num_requests=len(loop.requests))
        loop.fail_all(Unavailable("the scheduler has shut down", retry_after_s=RETRY_S))
    if num_pages := loop.engine.snapshot().num_unwritten_pages:
        _log.warning("pages not written back by shutdown", num_pages=num_pages)
