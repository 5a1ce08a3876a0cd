"""What the registry has decided about workers and routes. Pure values; the shell does them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendJoin:
    """Make a worker a stage of a new epoch."""

    worker_id: str
    epoch: int
    stage_index: int
    num_stages: int
    next_address: str
    inbound_token: bytes
    outbound_token: bytes
    num_pages: int
    fingerprint: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendConnect:
    """Let a stage dial the next one."""

    worker_id: str
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendStandBy:
    """Tell a worker that it is in no route now."""

    worker_id: str
    reason: str
    """Why no route stands, in words; empty if one does, and the worker is a spare."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendReleased:
    """Let a worker go that has said it will leave."""

    worker_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteStands:
    """Every stage of a route is connected; other routes stay as they are."""

    epoch: int
    worker_ids: tuple[str, ...]
    """In the order of the stages."""
    pool_ids: tuple[str, ...]
    """Names of the memory that the stages' pages lie in: of the same name, the same contents."""
    num_pages: int
    num_host_pages: int
    fingerprint: bytes
    link_latency_ms: float
    """Half of the round trip on its slowest link; 0 if it has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteBroke:
    """A route that stood is gone."""

    epoch: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteAwaited:
    """No route stands any more, and requests may wait; comes again when the prospect changes."""

    wait_s: float
    """From now; >= 0, and 0 says that none is in sight."""
    reason: str
    is_announced: bool
    """Whether new requests may wait, too: the worker that left has said so before."""


Decision = (
    SendJoin | SendConnect | SendStandBy | SendReleased | RouteStands | RouteBroke | RouteAwaited
)
