"""Who makes a call: what the guard of a port found out, for the servicer that answers it. Pure."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar

from chunkmesh.trust.access import Role


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who makes a call."""

    roles: frozenset[Role]
    name: str = ""
    """For people: of the certificate or the key; empty if neither has one. Never a key itself."""
    tenant: str = ""
    """Whose prompts and cached pages these are; empty if nobody in particular."""

    @property
    def is_admin(self) -> bool:
        """Whether an operator calls."""
        return Role.ADMIN in self.roles


NOBODY = Identity(roles=frozenset())

_current: ContextVar[Identity] = ContextVar("chunkmesh_identity", default=NOBODY)


def current_identity() -> Identity:
    """Return who makes the call that this task answers; NOBODY outside of a guarded one."""
    return _current.get()


def set_current_identity(identity: Identity) -> None:
    """Note who makes the call that this task answers, until it ends."""
    _current.set(identity)
