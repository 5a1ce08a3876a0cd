"""Notices that a scheduler says nothing any more, where there is another one to go to.

Silence is counted in looks at the clock: time in which this process itself stood still is nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from chunkmesh.errors import Unavailable

_LOOK_S = 0.25
_FIRST_S = 2.0
"""Until the first answer, connecting included; a scheduler answers Hello at once."""
_LATER_S = 2.5
"""Between two answers; a scheduler without orders beats every 0.5 s."""


class Silent(Unavailable):
    """A scheduler has said nothing for too long."""


class Silence:
    """Owner of how long a scheduler has said nothing. On the event loop only."""

    def __init__(self) -> None:
        """Begin before the first answer."""
        self._num_looks = 0
        self._limit_s = _FIRST_S

    def broken(self) -> None:
        """Take note of an answer."""
        self._num_looks = 0
        self._limit_s = _LATER_S

    @contextlib.asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """Cut off what is inside when it has lasted too long.

        Raises:
            Silent: it has.
        """
        try:
            async with asyncio.timeout(None) as limit:
                watch = asyncio.create_task(self._watch(limit))
                try:
                    yield
                finally:
                    watch.cancel()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise Silent(f"it has said nothing for {self._limit_s:g} s") from error

    async def _watch(self, limit: asyncio.Timeout) -> None:
        while self._num_looks * _LOOK_S < self._limit_s:
            await asyncio.sleep(_LOOK_S)
            self._num_looks += 1
        limit.reschedule(asyncio.get_running_loop().time())
