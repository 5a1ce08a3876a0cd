"""Keys of cached pages: a SHA-256 chain over the token ids of a prompt. Pure.

The scheduler digests a prompt once; workers and HiCache only carry the digests.
Source: chained block hashes as in vLLM's prefix caching design
(https://docs.vllm.ai/en/latest/design/prefix_caching.html).
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 32
_VERSION = b"chunkmesh page v1"

TokenIds = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """What all pages of a mesh have in common, whoever asks for them.

    First of all everything that their bytes depend on beside their tokens.
    """

    fingerprint: bytes
    """SHA-256 over the digests of all weights and the config."""
    kv_dtype: str
    """Such as float32."""
    page_tokens: int
    """Tokens a page holds, >= 1."""
    rope: str
    """Canonical text of the rope settings."""
    adapter: str = ""
    """Name of a weight adapter; none yet."""
    secret: bytes = dataclasses.field(default=b"", repr=False)
    """Key of what tenants and salts become; pages of another secret are never found. Empty is the
    key of all meshes without one, and anybody can name their pages."""

    def digest(self, *, tenant: str = "", cache_salt: str = "") -> bytes:
        """Return the first link of every chain of one tenant and salt, 32 bytes."""
        salt = hmac.digest(self.secret, _join(tenant.encode(), cache_salt.encode()), "sha256")
        parts = (
            _VERSION,
            self.fingerprint,
            self.kv_dtype.encode(),
            self.page_tokens.to_bytes(4, "little"),
            self.rope.encode(),
            self.adapter.encode(),
            salt,
        )
        return hashlib.sha256(_join(*parts)).digest()


def _join(*parts: bytes) -> bytes:
    """Join with lengths, so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def extend_chain(parent: bytes, token_ids: TokenIds, page_tokens: int) -> tuple[bytes, ...]:
    """Digest the full pages of token_ids, the first one chained to parent (32 bytes)."""
    ids = np.ascontiguousarray(token_ids, dtype="<u4")
    digests = []
    for start in range(0, len(ids) - page_tokens + 1, page_tokens):
        parent = hashlib.sha256(parent + ids[start : start + page_tokens].tobytes()).digest()
        digests.append(parent)
    return tuple(digests)
