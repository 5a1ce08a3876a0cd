"""What a worker says of itself in every stream."""

from __future__ import annotations

import dataclasses

from stage_worker.preferred_peer import PreferredPeer
from stage_worker.profile_plan import ProfilePoint
from stage_worker.stage import StageDescription


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A worker, as long as its process lives."""

    incarnation: str
    """Random, new at every process start."""
    description: StageDescription
    kv_capacity_tokens: int
    host_capacity_tokens: int
    """Of its host memory for pages."""
    peer: PreferredPeer | None
    """Where it would rather send its activations; None on the last stage."""
    profile: tuple[ProfilePoint, ...] = ()
    """What microbatches take; empty if that was not measured."""
