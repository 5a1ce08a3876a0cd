"""Chunk borders and how far a plan is."""

from __future__ import annotations

import pytest

from scheduler.chunking import ChunkPlan, FixedChunks


@pytest.mark.parametrize(
    ("start", "end", "ends"),
    [
        (0, 1, (1,)),
        (0, 63, (63,)),
        (0, 64, (64,)),
        (0, 65, (64, 65)),
        (0, 128, (64, 128)),
        (0, 129, (64, 128, 129)),
        (48, 49, (49,)),
        (16, 80, (80,)),
        (16, 81, (80, 81)),
    ],
)
def test_fixed_chunks(start: int, end: int, ends: tuple[int, ...]) -> None:
    """No chunk is empty, none is too long, and the first begins at the hit."""
    assert ends == FixedChunks(64).cut(start, end)


def test_plan_counts_sent_and_done() -> None:
    """Progress counts what is done, the next chunk follows what was sent."""
    plan = ChunkPlan(start=16, ends=FixedChunks(64).cut(16, 150))
    assert (plan.next_start, plan.next_tokens, plan.done_tokens) == (16, 64, 16)
    plan.num_sent = 2
    plan.num_done = 1
    assert (plan.next_start, plan.next_tokens, plan.done_tokens) == (144, 6, 80)
    assert plan.sent_chunk_tokens() == (64, 64)
    plan.num_sent = 3
    assert plan.is_sent
    assert plan.next_tokens == 0
