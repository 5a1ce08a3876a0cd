"""What a microbatch says to the stages."""

from __future__ import annotations

import dataclasses

import numpy as np

from scheduler.actions import PlannedEntry, PlannedSample
from scheduler.batching import describe, next_parts
from scheduler.budget import TokenBudget
from scheduler.chunking import FixedChunks
from scheduler.decode_groups import DecodeGroups
from scheduler.page_table import PageTable
from scheduler.part import decode_step, take_chunk
from scheduler.prefill import Prefill
from scheduler.request import Request, RequestState
from tests.specs import GREEDY, make_spec


def _prefilling(request_id: str, row: int, prompt: int, budget: TokenBudget) -> Request:
    """Return an admitted request with all its chunks to send."""
    prefill = Prefill(start=0, end=prompt)
    budget.begin(prefill)
    return Request(
        spec=make_spec(request_id, prompt),
        arrival=row,
        state=RequestState.PREFILL,
        row=row,
        table=PageTable(page_ids=list(range(10 * row, 10 * row + 10))),
        last_prefill=prefill,
    )


def _budget(chunk_tokens: int = 64) -> TokenBudget:
    """Return a budget of 64 tokens."""
    return TokenBudget(FixedChunks(chunk_tokens), 64)


def test_decode_rows_then_whole_chunks() -> None:
    """Rows of the activation, ids and samples must be in one order; a chunk is never cut."""
    budget = _budget()
    spec = dataclasses.replace(
        make_spec("d", 16, max_new_tokens=9), min_new_tokens=3, end_ids=frozenset({8, 7})
    )
    decoding = Request(
        spec=spec, state=RequestState.DECODE, row=0, table=PageTable(page_ids=[0, 1], num_named=1)
    )
    decoding.output_ids = [90, 91]
    groups = DecodeGroups(2)
    groups.add(decoding)
    prompts = (("a", 1, 40), ("b", 2, 35), ("c", 3, 24))
    prefilling = [_prefilling(*prompt, budget) for prompt in prompts]
    parts = next_parts(groups, prefilling, budget)
    sent = describe(parts, epoch=3, seq_no=7, page_tokens=16)
    assert sent.entries == (
        PlannedEntry(request_id="d", row=0, start=17, num_tokens=1, new_page_ids=(1,)),
        PlannedEntry(request_id="c", row=3, start=0, num_tokens=24, new_page_ids=(30, 31)),
        PlannedEntry(request_id="a", row=1, start=0, num_tokens=40, new_page_ids=(10, 11, 12)),
    )
    assert sent.token_ids.tolist() == [91, *range(24), *range(40)]
    assert sent.samples == (
        _sample(entry=0, row=0, position=2, forbidden_ids=(7, 8)),
        _sample(entry=1, row=3, position=0),
        _sample(entry=2, row=1, position=0),
    )
    assert (sent.epoch, sent.seq_no, sent.num_tokens) == (3, 7, 65)


def test_one_chunk_of_a_request_at_a_time() -> None:
    """Rows in a microbatch are distinct: a stage writes one range of a row per forward."""
    budget = _budget(10)
    request = _prefilling("a", 0, 40, budget)
    parts = next_parts(DecodeGroups(1), [request], budget)
    assert [(part.start, part.end) for part in parts] == [(0, 10)]


def test_first_chunk_goes_whatever_its_size() -> None:
    """A strategy may cut longer than the budget; the request must not stand still for ever."""
    budget = _budget(100)
    request = _prefilling("a", 0, 100, budget)
    parts = next_parts(DecodeGroups(1), [request], budget)
    assert [(part.start, part.end) for part in parts] == [(0, 100)]
    assert next_parts(DecodeGroups(1), [request], budget) == ()


def test_requests_of_a_microbatch_are_bounded() -> None:
    """Decode rows count as well, and go first."""
    budget = _budget(8)
    groups = DecodeGroups(1)
    decoding = Request(
        spec=make_spec("d", 4), state=RequestState.DECODE, row=0, table=PageTable(page_ids=[0])
    )
    decoding.output_ids = [9]
    groups.add(decoding)
    prefilling = [_prefilling(name, row, 8, budget) for row, name in enumerate("abc", 1)]
    parts = next_parts(groups, prefilling, budget, max_requests=3)
    assert [part.request.request_id for part in parts] == ["d", "a", "b"]
    groups.arrived([decoding])
    assert len(next_parts(groups, prefilling, budget, max_requests=1)) == 1


def _sample(
    *, entry: int, row: int, position: int, forbidden_ids: tuple[int, ...] = ()
) -> PlannedSample:
    """Plan a greedy choice for the only output."""
    return PlannedSample(
        entry=entry,
        row=row,
        child=0,
        position=position,
        sampling=GREEDY,
        forbidden_ids=forbidden_ids,
        seen=None,
    )


def test_counts_are_told_with_the_first_sample_only() -> None:
    """O09: penalties count the prompt, also where it was cached; afterwards the stage counts."""
    spec = dataclasses.replace(
        make_spec("a", np.array([7, 3, 7], dtype=np.uint32), max_new_tokens=9),
        sampling=dataclasses.replace(GREEDY, frequency_penalty=0.5),
    )
    request = Request(spec=spec, state=RequestState.DECODE, row=0, table=PageTable(page_ids=[0, 1]))
    request.output_ids = [3, 9]
    sent = describe((decode_step(request),), epoch=1, seq_no=0, page_tokens=16)
    seen = sent.samples[0].seen
    assert seen is not None
    assert (seen.ids.tolist(), seen.counts.tolist()) == ([3, 7, 9], [2, 2, 1])
    request.output_ids.append(4)
    sent = describe((decode_step(request),), epoch=1, seq_no=1, page_tokens=16)
    assert sent.samples[0].seen is None


def test_prompt_targets_cross_the_border_of_a_chunk() -> None:
    """The last logits of a chunk are of the next chunk's first token; those of a prompt of none."""
    request = _prefilling("a", 0, 40, _budget(16))
    request.spec = dataclasses.replace(request.spec, prompt_top_logprobs=2)
    told = []
    for end in (16, 32, 40):
        sent = describe((take_chunk(request, end),), epoch=1, seq_no=0, page_tokens=16)
        told += [target.target_ids.tolist() for target in sent.prompt_targets]
    assert told == [[*range(1, 17)], [*range(17, 33)], [*range(33, 40)]]
