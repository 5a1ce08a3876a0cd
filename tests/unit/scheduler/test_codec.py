"""What the scheduler's codec writes, the stage worker's reads."""

from __future__ import annotations

import dataclasses

import numpy as np

from chunkmesh.token_counts import TokenCounts, count_tokens
from scheduler.actions import PlannedEntry, PlannedSample, SendMicrobatch
from scheduler.codec import microbatch_orders
from scheduler.events import Sampling
from stage_worker.codec import microbatch_from
from tests.specs import GREEDY

PENALISED = dataclasses.replace(GREEDY, presence_penalty=0.5)


def sample(
    entry: int, row: int, sampling: Sampling = GREEDY, seen: TokenCounts | None = None
) -> PlannedSample:
    """Return a sample of an entry."""
    return PlannedSample(
        entry=entry, row=row, child=0, position=0, sampling=sampling, forbidden_ids=(), seen=seen
    )


def test_what_outputs_of_one_prompt_have_seen_is_told_once() -> None:
    """128 times the counts of a long prompt would be more than a message holds."""
    prompt, other = (count_tokens(np.array(ids, dtype=np.uint32)) for ids in ([7, 9, 7], [3]))
    samples = (
        sample(0, 0),
        *(sample(1, row, PENALISED, prompt) for row in (1, 2, 3)),
        sample(2, 4, PENALISED),
        sample(3, 5, PENALISED, other),
    )
    entries = tuple(
        PlannedEntry(request_id=f"r{row}", row=row, start=0, num_tokens=1, new_page_ids=(row,))
        for row in (0, 1, 4, 5)
    )
    order = microbatch_orders(
        SendMicrobatch(
            epoch=1,
            seq_no=0,
            entries=entries,
            token_ids=np.zeros(4, dtype=np.uint32),
            samples=samples,
        ),
        2,
    )[1].microbatch
    assert [0, 2, 0, 0, 0, 1] == [len(row.seen_ids) for row in order.sampling]
    penalties = [row.penalties for row in microbatch_from(order).sampling]
    assert penalties[0] is None
    seen = [each.seen for each in penalties if each is not None]
    assert [[7, 9], [7, 9], [7, 9], None, [3]] == [each and each.ids.tolist() for each in seen]
    assert [[2, 1], [2, 1], [2, 1], None, [1]] == [each and each.counts.tolist() for each in seen]
