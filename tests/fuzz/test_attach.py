"""The internal port: a worker that lies costs itself, and the next honest one serves."""

from __future__ import annotations

import collections
import random

from tests.fuzz.exploration import explore_async
from tests.fuzz.lying_worker import LyingWorker, new_loop


class _Honest(random.Random):
    """Draws nothing that would be a lie."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq: object) -> object:  # type: ignore[override]
        return seq[-1]  # type: ignore[index]


async def test_hostile_workers() -> None:
    """Nothing that a worker says is a bug of the scheduler's, and nothing of it stays."""
    loop = new_loop()
    ends: collections.Counter[str] = collections.Counter()

    async def check(seed: int) -> None:
        ends[await LyingWorker(loop, random.Random(seed)).run()] += 1  # noqa: S311
        assert not loop.workers.registry.workers
        assert len(loop.requests) == 0

    await explore_async(lambda random_: random_.getrandbits(32), check, examples=150)
    assert ends.keys() == {"refused", "left", "broke the protocol"}
    assert loop.engine.is_idle()
    assert await LyingWorker(loop, _Honest()).run() == "left"
    assert [each.output_tokens for each in loop.requests.timelines()][-1:] == [6]
