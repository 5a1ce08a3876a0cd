"""What a worker is to the mesh, for its health and /ready. Plain values."""

from __future__ import annotations

import dataclasses
from enum import Enum


class Duty(Enum):
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
    """A duty, and why it is not a better one."""

    duty: Duty
    reason: str = ""
    """In words; empty if it is ready."""

    @property
    def is_ready(self) -> bool:
        """Whether it does, or would do at once, what it is there for."""
        return self.duty in {Duty.STAGE, Duty.SPARE}


NOWHERE = Place(duty=Duty.NONE, reason="loaded, but no route stands")
STAGE = Place(duty=Duty.STAGE)
SPARE = Place(duty=Duty.SPARE)
LEAVING = Place(duty=Duty.LEAVING, reason="the worker is about to end")
