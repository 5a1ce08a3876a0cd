"""Ends every service of a mesh under load, one after the other, and starts each again."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from tests.service_process import Service
from tests.standby_mesh import Shape, StandbyMesh
from tests.streaming_load import StreamingLoad
from tests.valkey import running_valkey

_SETTLED_S = 0.5
"""Of load behind a restart, so that what it did to clients is seen as its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What the restart of one service was like."""

    name: str
    exit_status: int
    end_s: float
    """From SIGTERM to the end of the process."""
    start_s: float
    """From its start until it did again what it is there for."""
    longest_wait_s: float
    """Of one client for the next piece of output, meanwhile."""


@contextlib.contextmanager
def whole_mesh(model: Path, folder: Path) -> Iterator[StandbyMesh]:
    """Run two of everything inside, over one Valkey."""
    shape = Shape(
        layers=("0-1", "2-3", "0-1", "2-3"),
        num_hicaches=2,
        scheduler_flags=("--load-min-tokens=0",),
    )
    with (
        running_valkey(folder) as valkey,
        StandbyMesh(model, valkey, folder, shape).running() as mesh,
    ):
        yield mesh


def restart_each(mesh: StandbyMesh, load: StreamingLoad) -> Iterator[Restart]:
    """Restart one service after the other; each is up again before the next one ends."""
    for name, service in mesh.services.items():
        yield restart(name, service, mesh, load)


def restart(name: str, service: Service, mesh: StandbyMesh, load: StreamingLoad) -> Restart:
    """End one service, wait for that, start it again, and wait until it is up."""
    load.wait_for(2)
    begin_s = time.monotonic()
    exit_status = service.end()
    ended_s = time.monotonic()
    service.start()
    mesh.wait_up(service)
    up_s = time.monotonic()
    time.sleep(_SETTLED_S)
    load.wait_for(2)
    return Restart(
        name=name,
        exit_status=exit_status,
        end_s=ended_s - begin_s,
        start_s=up_s - ended_s,
        longest_wait_s=load.longest_wait_s(begin_s, time.monotonic()),
    )
