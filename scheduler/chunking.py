"""Where a prompt is cut into chunks, if its borders do not depend on what else runs. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol


class ChunkStrategy(Protocol):
    """Cuts what is left of a prompt."""

    def cut(self, start: int, end: int) -> Sequence[int]:
        """Return the ends of the chunks of [start, end): ascending, > start, the last is end."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class FixedChunks:
    """Chunks of one size, and a last one of what is left."""

    chunk_tokens: int
    """>= 1."""

    def cut(self, start: int, end: int) -> Sequence[int]:
        """Count from start, which need not be a multiple of the size."""
        return (*range(start + self.chunk_tokens, end, self.chunk_tokens), end)
