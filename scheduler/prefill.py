"""How far the prefill of one output is: chunks sent, chunks done, and borders wanted. Pure.

A chunk gets its border when it is sent, because what else is in its microbatch may leave less room
for it than was planned. So what is planned for the rest is a prediction.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(slots=True, kw_only=True)
class Prefill:
    """The chunks of known tokens [start, end)."""

    start: int
    """First token that is computed: the tokens of the hit."""
    end: int
    """> start."""
    borders: Sequence[int] = ()
    """Where chunks are wanted to begin and end, ascending up to end; empty before anybody has said.
    The first is start or, if the rest was planned anew, a later end of a chunk."""
    sent_ends: list[int] = dataclasses.field(default_factory=list)
    """End of each chunk that was sent, ascending, in (start, end]."""
    num_done: int = 0
    """Chunks acknowledged by the last stage, and so by nature by all before it; of those sent."""
    began_at: float = 0.0
    """The budget's clock when it began to wait for its chunks."""
    num_changes: int = 0
    """How often borders, chunks sent or chunks done changed."""
    is_given: bool = False
    """Whether the client chose the borders: then chunks end there and nowhere else."""

    @property
    def is_sent(self) -> bool:
        """Whether no chunk is left to send."""
        return self.next_start == self.end

    @property
    def next_start(self) -> int:
        """Start of the first chunk that is not sent, or the end."""
        return self.sent_ends[-1] if self.sent_ends else self.start

    @property
    def last_start(self) -> int:
        """Start of the last chunk, as far as is known."""
        if self.is_sent:
            return self.sent_ends[-2] if len(self.sent_ends) > 1 else self.start
        return max(self.next_start, self.borders[-2] if len(self.borders) > 1 else self.start)

    @property
    def done_tokens(self) -> int:
        """Leading tokens whose KV is ready on every stage, the hit included."""
        return self.sent_ends[self.num_done - 1] if self.num_done else self.start

    @property
    def num_in_flight(self) -> int:
        """Chunks sent and not done."""
        return len(self.sent_ends) - self.num_done

    @property
    def num_planned(self) -> int:
        """Chunks in all, as far as is known; true when all are sent."""
        return len(self.sent_ends) + self._num_wanted

    @property
    def num_left(self) -> int:
        """Chunks that are not done, as far as is known; 0 only when all are."""
        return self.num_in_flight + self._num_wanted

    @property
    def sent_chunk_tokens(self) -> tuple[int, ...]:
        """Tokens of each chunk that was sent."""
        starts = (self.start, *self.sent_ends)
        return tuple(end - start for start, end in zip(starts, self.sent_ends, strict=False))

    def wanted_end(self) -> int | None:
        """Return where the next chunk is wanted to end; None if the last one ended elsewhere."""
        index = bisect.bisect_right(self.borders, self.next_start)
        is_at_border = index > 0 and self.borders[index - 1] == self.next_start
        return self.borders[index] if is_at_border and index < len(self.borders) else None

    def give(self, ends: Sequence[int]) -> None:
        """Take the client's ends of all chunks, before anybody has planned any."""
        self.borders = (self.start, *ends)
        self.is_given = True
        self.num_changes += 1

    def want(self, borders: Sequence[int]) -> None:
        """Take planned borders, unless the client has given its own."""
        if not self.is_given:
            self.borders = borders
            self.num_changes += 1

    def send(self, end: int) -> None:
        """Count the chunk up to end, next_start < end <= self.end, as sent."""
        self.sent_ends.append(end)
        self.num_changes += 1

    def chunk_done(self) -> None:
        """Count one more chunk as done on every stage."""
        self.num_done += 1
        self.num_changes += 1

    @property
    def _num_wanted(self) -> int:
        """Chunks that are likely still to be sent."""
        if self.is_sent:
            return 0
        return max(1, len(self.borders) - bisect.bisect_right(self.borders, self.next_start))
