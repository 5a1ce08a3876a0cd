"""What a scheduler brings to the keys of its pages; weights, dtype and page size come from workers.

Pure.
"""

from __future__ import annotations

import dataclasses

from chunkmesh.pages import Namespace


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageKeying:
    """The same for every page of a mesh."""

    rope: str
    """Canonical text of the rope settings."""
    secret: bytes = dataclasses.field(default=b"", repr=False)
    """Key of tenants and salts; empty without one."""

    def namespace(self, fingerprint: bytes, kv_dtype: str, page_tokens: int) -> Namespace:
        """Return what the pages of routes with these weights have in common."""
        return Namespace(
            fingerprint=fingerprint,
            kv_dtype=kv_dtype,
            page_tokens=page_tokens,
            rope=self.rope,
            secret=self.secret,
        )
