"""Puts together how a scheduler comes to lead its mesh, what it does then, and how it ceases to."""

from __future__ import annotations

import secrets
import socket

from chunkmesh.address import EVERY_NETWORK, HostPort
from chunkmesh.errors import Standby
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.kv_login import login_of
from chunkmesh.kv_store import KvStore
from chunkmesh.store_thread import StoreThread
from scheduler.candidate import Candidate, Deeds, Election
from scheduler.control_loop import ControlLoop
from scheduler.leadership import Holder, Leadership, LoneLeadership
from scheduler.mesh_lease import MeshLease
from scheduler.settings import SchedulerSettings
from scheduler.standby import RETRY_S

_STORE_TIMEOUT_S = 0.5
"""Of Redis, for one send or receive; much less than a lease lives."""


def deeds(loop: ControlLoop, internal: GrpcServer) -> Deeds:
    """Return what happens to a control loop, and to the health of the workers' port."""

    def lead(term: int) -> None:
        loop.workers.registry.lead(term)
        internal.set_serving(serving=True)

    def step_down(reason: str, active: str) -> None:
        internal.set_serving(serving=False)
        text = f"another scheduler leads: {reason}"
        loop.fail_all(Standby(text, retry_after_s=RETRY_S, active=active))
        loop.workers.close(text)

    return Deeds(
        lead=lead,
        step_down=step_down,
        let_go=loop.workers.close,
        has_route=lambda: bool(loop.workers.registry.routes),
    )


def new_candidate(settings: SchedulerSettings, its_deeds: Deeds) -> Candidate:
    """Make who stands for a scheduler: for its mesh if that has a name, else alone.

    Raises:
        ConfigError: --redis-url is none, or a file of its login does not do.
    """
    if not settings.mesh_name:
        return Candidate(LoneLeadership(), its_deeds)
    name = secrets.token_hex(8)
    login = login_of(settings)
    store = StoreThread(KvStore(*settings.redis_url, timeout_s=_STORE_TIMEOUT_S, login=login))
    host = _host(settings)

    def lease(users_port: int, workers_port: int) -> MeshLease:
        me = Holder(
            name=name,
            term=0,
            users=str(HostPort(host=host, port=users_port)),
            workers=str(HostPort(host=host, port=workers_port)),
        )
        return MeshLease(settings.mesh_name, me)

    return Candidate(Leadership(name), its_deeds, Election(store=store, lease=lease))


def _host(settings: SchedulerSettings) -> str:
    """Return how others reach this machine."""
    if settings.advertise_host:
        return settings.advertise_host
    return socket.gethostname() if settings.host in EVERY_NETWORK else settings.host
