"""What is done to a mesh under load, one fault after the other; each leaves it whole again."""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable, Mapping

from tests.service_process import Service
from tests.standby_mesh import StandbyMesh

_STOPPED_S = 1.5
"""More than --worker-timeout."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to disturb a mesh."""

    inject: Callable[[StandbyMesh, random.Random], None]
    """Blocks until everything is up again."""
    may_cut: bool = False
    """Whether a stream that runs meanwhile may end UNAVAILABLE behind its first output."""


def _kill(mesh: StandbyMesh, *services: Service) -> None:
    """Kill services at once, then start each again."""
    for each in services:
        each.send(signal.SIGKILL)
    for each in services:
        assert -signal.SIGKILL == each.exit_status(), mesh.logs()
        each.start()
    mesh.wait_up(*services)


def _stop_worker(mesh: StandbyMesh, chance: random.Random) -> None:
    worker = chance.choice(mesh.workers)
    worker.send(signal.SIGSTOP)
    time.sleep(_STOPPED_S)
    worker.send(signal.SIGCONT)
    mesh.wait_up(worker)


def _flush(mesh: StandbyMesh, _chance: random.Random) -> None:
    with mesh.valkey.client() as client:
        client.flushall()


def _end(mesh: StandbyMesh, service: Service) -> None:
    assert service.end() == 0
    service.start()
    mesh.wait_up(service)


def _kill_stage(mesh: StandbyMesh, chance: random.Random) -> None:
    first = chance.choice(mesh.workers[: len(mesh.workers) // 2])
    layers = first.command[2]
    _kill(mesh, *(each for each in mesh.workers if each.command[2] == layers))


FAULTS: Mapping[str, Fault] = {
    "worker killed": Fault(inject=lambda mesh, chance: _kill(mesh, chance.choice(mesh.workers))),
    "worker ended": Fault(inject=lambda mesh, chance: _end(mesh, chance.choice(mesh.workers))),
    "worker stopped": Fault(inject=_stop_worker),
    "HiCache killed": Fault(inject=lambda mesh, chance: _kill(mesh, chance.choice(mesh.hicaches))),
    "Valkey killed": Fault(inject=lambda mesh, _chance: _kill(mesh, mesh.valkey)),
    "Valkey flushed": Fault(inject=_flush),
    "worker and HiCache killed": Fault(
        inject=lambda mesh, chance: _kill(
            mesh, chance.choice(mesh.workers), chance.choice(mesh.hicaches)
        )
    ),
    "all workers of a stage killed": Fault(inject=_kill_stage, may_cut=True),
    "active scheduler ended": Fault(inject=lambda mesh, _chance: _end(mesh, mesh.active)),
    "active scheduler killed": Fault(
        inject=lambda mesh, _chance: _kill(mesh, mesh.active), may_cut=True
    ),
}
