"""What GetServerInfo and GetModelInfo answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping

from chunkmesh import __version__
from chunkmesh.layers import LayerRange
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.cache_report import cache_info
from scheduler.control_loop import ControlLoop
from scheduler.formation import Phase
from scheduler.latency_model import StageLatency
from scheduler.leadership import AnyLeadership
from scheduler.live_route import LiveRoute
from scheduler.model_files import ModelFiles
from scheduler.registry import Registry
from scheduler.snapshot import RouteCounts
from scheduler.stage_fit import StageFit
from scheduler.standby import active_users
from scheduler.worker_hello import WorkerHello


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model under the name that users see."""

    name: str
    files: ModelFiles
    context_length: int
    """Longest prompt and output together, in tokens."""


def model_info(model: ServedModel, registry: Registry) -> pb.GetModelInfoResponse:
    """Describe the model."""
    return pb.GetModelInfoResponse(
        served_model_name=model.name,
        architecture=model.files.architecture,
        vocab_size=model.files.vocab_size,
        context_length=model.context_length,
        num_layers=model.files.num_layers,
        eos_token_ids=sorted(model.files.eos_ids),
        fingerprint=registry.fingerprint(),
    )


def server_info(
    loop: ControlLoop, leadership: AnyLeadership, *, cache_fault: str
) -> pb.GetServerInfoResponse:
    """Describe the mesh as it is now."""
    registry = loop.workers.registry
    reason = leadership.standby_reason() or loop.unready_reason()
    now = loop.engine.snapshot()
    counts = {each.epoch: each for each in now.routes}
    live = next(iter(loop.workers.routes.values()), None)
    workers = sorted(registry.workers.values(), key=lambda each: each.layers)
    return pb.GetServerInfoResponse(
        ready=not reason,
        reason=reason,
        missing_layers=[_layers(each) for each in registry.missing()],
        workers=[_worker(each, registry) for each in workers],
        epoch=registry.epoch,
        page_tokens=registry.page_tokens,
        num_pages=now.num_pages,
        free_pages=now.num_free_pages,
        num_requests_running=now.num_running,
        num_requests_waiting=now.num_waiting,
        num_microbatches_in_flight=now.num_in_flight,
        chunk_strategy=now.chunk_strategy,
        chunk_strategy_reason=now.chunk_strategy_reason,
        chunked_prefill_tokens=loop.config.chunked_prefill_tokens,
        cache_fault=cache_fault,
        version=__version__,
        num_preemptions=now.num_preemptions,
        cache=cache_info(now),
        chunk_alignment_tokens=now.chunk_alignment_tokens,
        active_scheduler=active_users(leadership),
        fits=[] if live is None else _fits(live, counts.get(live.epoch)),
        routes=_routes(loop, counts),
    )


def _routes(loop: ControlLoop, counts: Mapping[int, RouteCounts]) -> Iterator[pb.RouteInfo]:
    """Describe the routes that stand or form."""
    now_s = time.monotonic()
    for formation in loop.workers.registry.routes.values():
        info = pb.RouteInfo(
            epoch=formation.epoch,
            worker_ids=formation.worker_ids,
            num_pages=formation.num_pages,
            free_pages=formation.num_pages,
        )
        live = loop.workers.routes.get(formation.epoch)
        if live is not None:
            info.stands = True
            info.stood_ms = round(1000 * (now_s - live.since_s))
            info.fits.extend(_fits(live, counts.get(live.epoch)))
        if (now := counts.get(formation.epoch)) is not None:
            info.free_pages = now.num_free_pages
            info.num_requests_running = now.num_running
            info.num_microbatches_in_flight = now.num_in_flight
        yield info


def _worker(hello: WorkerHello, registry: Registry) -> pb.WorkerInfo:
    """Describe one worker."""
    info = pb.WorkerInfo(
        worker_id=hello.worker_id,
        layers=_layers(hello.layers),
        data_address=hello.data_address,
        kv_capacity_tokens=hello.kv_capacity_tokens,
        device=hello.device,
        chunk_alignment_tokens=hello.chunk_alignment_tokens,
        backends=[
            common_pb2.Backend(operation=each.operation, name=each.name, reason=each.reason)
            for each in hello.backends
        ],
    )
    route = registry.route_of(hello.worker_id)
    if route is None:
        is_leaving = hello.worker_id in registry.leaving
        info.state = pb.WORKER_STATE_LEAVING if is_leaving else pb.WORKER_STATE_SPARE
        return info
    stands = route.phase is Phase.STANDING
    info.state = pb.WORKER_STATE_SERVING if stands else pb.WORKER_STATE_JOINING
    info.epoch = route.epoch
    info.stage_index = route.worker_ids.index(hello.worker_id)
    link = route.links.get(hello.worker_id)
    if link is not None:
        info.outbound.CopyFrom(pb.LinkInfo(transport=link.transport, rtt_us=link.rtt_us))
    return info


def _fits(live: LiveRoute, now: RouteCounts | None) -> list[pb.StageFit]:
    """Describe how well the latencies of a route are known, by what is planned with now."""
    if now is None:
        return [_fit(fit, fit.latency) for fit in live.fits]
    latencies = now.latency.stages if now.latency else [fit.latency for fit in live.fits]
    described = [_fit(fit, latency) for fit, latency in zip(live.fits, latencies, strict=True)]
    for each, num_refits in zip(described, now.num_refits, strict=True):
        each.num_refits = num_refits
    return described


def _fit(fit: StageFit, latency: StageLatency | None) -> pb.StageFit:
    """Describe how well a stage's latency is known."""
    return pb.StageFit(
        layers=_layers(fit.layers),
        median_error=fit.median_error or 0.0,
        p90_error=fit.p90_error or 0.0,
        refused=fit.refused or "",
        source=fit.source or "",
        terms=None if latency is None else pb.LatencyTerms(**dataclasses.asdict(latency)),
    )


def _layers(layers: LayerRange) -> common_pb2.LayerRange:
    """Write a layer range."""
    return common_pb2.LayerRange(first=layers.first, last=layers.last)
