"""Where a prompt is cut into chunks. Pure; asked once a request's hit is known.

The borders are the strategy's alone: batching takes a chunk whole or leaves it for a later
microbatch.
"""

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


@dataclasses.dataclass(slots=True, kw_only=True)
class ChunkPlan:
    """The chunks of one request and how far they are."""

    start: int
    """First token that is computed: the tokens of the hit."""
    ends: Sequence[int]
    """End of each chunk, ascending, above start."""
    num_sent: int = 0
    """0 <= num_done <= num_sent <= len(ends)."""
    num_done: int = 0
    """Chunks acknowledged by the last stage, and so by nature by all before it."""

    @property
    def is_sent(self) -> bool:
        """Whether no chunk is left to send."""
        return self.num_sent == len(self.ends)

    @property
    def next_start(self) -> int:
        """Start of the first chunk that is not sent, or the end of the prompt."""
        return self._border(self.num_sent)

    @property
    def next_tokens(self) -> int:
        """Tokens of the first chunk that is not sent; 0 if all are."""
        return 0 if self.is_sent else self.ends[self.num_sent] - self.next_start

    @property
    def done_tokens(self) -> int:
        """Leading prompt tokens whose KV is ready on every stage, the hit included."""
        return self._border(self.num_done)

    def sent_chunk_tokens(self) -> tuple[int, ...]:
        """Return the tokens of each chunk that was sent."""
        return tuple(self.ends[i] - self._border(i) for i in range(self.num_sent))

    def _border(self, index: int) -> int:
        """Return where chunk index begins."""
        return self.ends[index - 1] if index else self.start
