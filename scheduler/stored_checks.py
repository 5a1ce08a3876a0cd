"""Whether Redis still has what the workers hold of prompts, which nobody reads from there. Pure.

A prompt that is found on the devices or in host memory as a whole waits for no answer of HiCache,
so that pages which were deleted, evicted or flushed meanwhile would not be stored again as long as
the workers have them. HiCache is asked beside the request, and what it lacks is stored in the
background, as the write policy says.
"""

from __future__ import annotations

from scheduler.actions import CheckStored
from scheduler.events import Checked
from scheduler.stores import Stores

MAX_OPEN = 8
"""Questions without an answer."""
PAUSE_S = 2.0
"""Between two questions for the same prompt."""
FAILING_PAUSE_S = 30.0
"""The same while stores fail: Redis may be full or away."""
_MAX_PROMPTS = 1024
"""That are remembered, of those that were asked for last."""


class StoredChecks:
    """Owner of the questions of one route."""

    def __init__(self, stores: Stores) -> None:
        """Begin with none."""
        self._stores = stores
        self._open: dict[bytes, tuple[tuple[bytes, ...], frozenset[bytes]]] = {}
        """By last page: all pages, and those that Redis should have had when it was asked."""
        self._asked_s: dict[bytes, float] = {}
        """When a prompt's last page was asked for; the latest at the end."""

    def ask(self, digests: tuple[bytes, ...], now_s: float) -> list[CheckStored]:
        """Ask for a prompt's pages, if that is due and could change anything."""
        if not digests or len(self._open) >= MAX_OPEN or self._stores.is_flushing:
            return []
        prompt = digests[-1]
        pause_s = FAILING_PAUSE_S if self._stores.is_failing else PAUSE_S
        asked_s = self._asked_s.get(prompt)
        if prompt in self._open or (asked_s is not None and now_s - asked_s < pause_s):
            return []
        believed = self._stores.believed(digests)
        if not believed:
            return []
        self._asked_s.pop(prompt, None)
        self._asked_s[prompt] = now_s
        if len(self._asked_s) > _MAX_PROMPTS:
            del self._asked_s[next(iter(self._asked_s))]
        self._open[prompt] = digests, frozenset(believed)
        return [CheckStored(digests=digests)]

    def answered(self, event: Checked) -> None:
        """Let what is lost be stored again; an answer that nobody waits for changes nothing."""
        digests, believed = self._open.pop(event.last_digest, ((), frozenset()))
        if event.num_pages is None:
            return
        lost = self._stores.believed(digests[event.num_pages :])
        self._stores.restore([digest for digest in lost if digest in believed])
