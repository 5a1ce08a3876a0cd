"""The command lines of a mesh's services, in the order in which they start.

Services are run as modules of this Python; `-P` keeps the current folder from shadowing them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from chunkmesh.address import LOOPBACK
from chunkmesh.cli.child_process import ChildCommand
from chunkmesh.cli.endpoints import HicacheEndpoints, MeshEndpoints
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.cli.partition import inclusive
from chunkmesh.cli.process_family import PlannedChild
from chunkmesh.cli.readiness import SideDoor
from chunkmesh.known_settings import variable_of
from chunkmesh.trust.access import Role

SCHEDULER = "scheduler"
"""Name of the scheduler's process, and of what it is there for."""
STANDBY = "standby"
"""Name of the process of the scheduler that stands by, and of the state that it is ready in."""
GATEWAY = "gateway"
"""Name of the gateway's."""
_CAPACITY_FLAGS = frozenset({"--max-total-tokens", "--mem-fraction"})
_SHARED_TOKENS = 16384
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def planned_central(options: MeshOptions, endpoints: MeshEndpoints) -> tuple[PlannedChild, ...]:
    """Return hicache-server (with a cache) and the scheduler."""
    scheduler = _scheduler(options, endpoints)
    if endpoints.hicache is None:
        return (scheduler,)
    return (_hicache(options, endpoints.hicache), scheduler)


def planned_standby(options: MeshOptions, endpoints: MeshEndpoints) -> tuple[PlannedChild, ...]:
    """Return the scheduler that stands by, if there is one."""
    standby = endpoints.standby
    if standby is None:
        return ()
    flags = {
        **_scheduler_flags(options, endpoints),
        "--port": standby.users.port,
        "--internal-port": standby.internal.port,
        "--http-port": standby.side_door.port,
    }
    return (
        PlannedChild(
            command=_scheduler_command(STANDBY, options, endpoints, flags),
            probe=SideDoor(address=standby.side_door, ready_state=STANDBY),
            address=str(standby.users),
            role=SCHEDULER,
        ),
    )


def planned_workers(options: MeshOptions, endpoints: MeshEndpoints) -> tuple[PlannedChild, ...]:
    """Return the stage workers: one for each stage, then those beside them."""
    return tuple(_worker(options, endpoints, index) for index in range(len(endpoints.workers)))


def planned_gateway(options: MeshOptions, endpoints: MeshEndpoints) -> tuple[PlannedChild, ...]:
    """Return chunkmesh-gateway, if there is to be one."""
    if endpoints.gateway is None:
        return ()
    flags = {
        "--host": options.host,
        "--port": endpoints.gateway.port,
        "--server": endpoints.servers,
        "--ssl-ca-certs": None if options.certs is None else options.certs / "ca.crt",
    }
    planned = PlannedChild(
        command=_module(GATEWAY, "chunkmesh.gateway", _words(flags)),
        probe=SideDoor(address=endpoints.gateway),
        address=str(endpoints.gateway),
    )
    return (planned,)


def _hicache(options: MeshOptions, hicache: HicacheEndpoints) -> PlannedChild:
    flags = {
        "--host": LOOPBACK,
        "--port": hicache.grpc.port,
        "--http-port": hicache.side_door.port,
        "--max-bytes": _page_budget(options) if options.redis_url is None else None,
        **_tls_flags(options, Role.HICACHE),
    }
    return PlannedChild(
        command=_module("hicache", "hicache", _words(flags), redis_url=hicache.redis_url),
        probe=SideDoor(address=hicache.side_door),
        address=str(hicache.grpc),
    )


def _page_budget(options: MeshOptions) -> int:
    """Leave our own Redis a quarter for keys, buffers and pages not yet committed."""
    return options.redis_max_bytes * 3 // 4


def _scheduler(options: MeshOptions, endpoints: MeshEndpoints) -> PlannedChild:
    flags = _scheduler_flags(options, endpoints)
    return PlannedChild(
        command=_scheduler_command(SCHEDULER, options, endpoints, flags),
        probe=SideDoor(address=endpoints.side_door),
        address=str(endpoints.scheduler),
        role=SCHEDULER,
    )


def _scheduler_command(
    name: str, options: MeshOptions, endpoints: MeshEndpoints, flags: Mapping[str, object]
) -> ChildCommand:
    return _module(
        name,
        "scheduler",
        (*_words(flags), *options.scheduler_flags),
        redis_url=None if options.mesh_name is None else endpoints.redis_url,
    )


def _scheduler_flags(options: MeshOptions, endpoints: MeshEndpoints) -> dict[str, object]:
    return {
        "--model-path": options.model_path,
        "--host": options.host,
        "--port": endpoints.scheduler.port,
        "--internal-port": endpoints.internal.port,
        "--http-port": endpoints.side_door.port,
        "--hicache-url": None if endpoints.hicache is None else endpoints.hicache.grpc,
        "--page-size": options.page_tokens,
        "--chunked-prefill-size": options.chunked_prefill_tokens,
        "--mesh-name": options.mesh_name,
        **_tls_flags(options, Role.SCHEDULER),
    }


def _worker(options: MeshOptions, endpoints: MeshEndpoints, index: int) -> PlannedChild:
    worker = endpoints.workers[index]
    same = [each for each in endpoints.workers[:index] if each.layers == worker.layers]
    first = next(i for i, each in enumerate(endpoints.workers) if each.layers == worker.layers)
    num_stages = len({each.layers for each in endpoints.workers})
    has_peer = num_stages == len(endpoints.workers) and index + 1 < num_stages
    flags = {
        "--model-path": options.model_path,
        "--layers": inclusive(worker.layers),
        "--peer": endpoints.workers[index + 1].data if has_peer else None,
        "--host": LOOPBACK,
        "--data-port": worker.data.port,
        "--port": worker.grpc.port,
        "--http-port": worker.side_door.port,
        "--scheduler": endpoints.internals,
        "--device": options.devices[index % len(options.devices)] if options.devices else None,
        "--threads": options.threads,
        "--transport": options.transport,
        "--max-total-tokens": _shared_tokens(options, len(endpoints.workers)),
        **_tls_flags(options, Role.WORKER),
    }
    words = (*_words(flags), *options.worker_flags)
    return PlannedChild(
        command=_module(
            f"worker-{first}" + (f"-{len(same)}" if same else ""),
            "stage_worker",
            words,
            threads=options.threads,
            redis_url=endpoints.redis_url,
        ),
        probe=SideDoor(address=worker.side_door),
        address=str(worker.data),
        role=f"stage {first}",
    )


def _tls_flags(options: MeshOptions, role: Role) -> dict[str, object]:
    """Return the flags of a role's certificate."""
    if options.certs is None:
        return {}
    return {
        "--ssl-certfile": options.certs / f"{role}.crt",
        "--ssl-keyfile": options.certs / f"{role}.key",
        "--ssl-ca-certs": options.certs / "ca.crt",
    }


def _shared_tokens(options: MeshOptions, num_workers: int) -> int | None:
    """Return the KV capacity where workers share a GPU: each would take what all see as free."""
    are_on_gpus = any(name.startswith("cuda") for name in options.devices)
    if not are_on_gpus or num_workers <= len(set(options.devices)):
        return None
    is_told = any(word.partition("=")[0] in _CAPACITY_FLAGS for word in options.worker_flags)
    return None if is_told else _SHARED_TOKENS


def _words(flags: Mapping[str, object]) -> tuple[str, ...]:
    """Leave out flags of None: the service's own default holds."""
    given = ((flag, str(value)) for flag, value in flags.items() if value is not None)
    return tuple(word for pair in given for word in pair)


def _module(
    name: str,
    module: str,
    words: tuple[str, ...],
    *,
    threads: int = 1,
    redis_url: str | None = None,
) -> ChildCommand:
    """Return how to run a service; what may hold a password is no word of its command line."""
    return ChildCommand(
        name=name,
        command=(sys.executable, "-P", "-m", module, *words),
        environment={
            **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            **({} if redis_url is None else {variable_of("redis_url"): redis_url}),
        },
    )
