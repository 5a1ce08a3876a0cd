"""What a worker is to the mesh, for its health and /ready. Plain values."""

from __future__ import annotations

import dataclasses
from enum import Enum


class Role(Enum):
    """What an attached worker does."""

    NONE = "waiting"
    """Neither: no route stands that it could be a spare of."""
    STAGE = "serving"
    """It is a connected stage of a route."""
    SPARE = "spare"
    """Routes stand without it, and it is ready to take over."""
    LEAVING = "leaving"
    """It is about to end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A role, and why it is not a better one."""

    role: Role
    reason: str = ""
    """In words; empty if it is ready."""

    @property
    def is_ready(self) -> bool:
        """Whether it does, or would do at once, what it is there for."""
        return self.role in {Role.STAGE, Role.SPARE}


NOWHERE = Place(role=Role.NONE, reason="loaded, but no route stands")
STAGE = Place(role=Role.STAGE)
SPARE = Place(role=Role.SPARE)
LEAVING = Place(role=Role.LEAVING, reason="the worker is about to end")
