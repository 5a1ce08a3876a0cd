"""What a scheduler brings to the keys of its pages; weights, dtype and page size come from workers.

Pure.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageKeying:
    """The same for every page of a mesh."""

    rope: str
    """Canonical text of the rope settings."""
    secret: bytes = dataclasses.field(default=b"", repr=False)
    """Key of tenants and salts; empty without one."""
