"""What goes into the next microbatch. Pure.

One decode group's rows first, so that nobody waits for a long prompt; then whole chunks, in the
order of admission, as far as the chunk budget goes. Decode rows do not count against it: chunks
keep the borders that their strategy chose, and a long prompt is not slowed down by those who
decode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from chunkmesh.errors import InvariantViolated
from scheduler.actions import PlannedEntry, PlannedSample, PlannedTargets, SendMicrobatch
from scheduler.decode_groups import DecodeGroups
from scheduler.part import Part, decode_step, take_chunk
from scheduler.request import Request, RequestState


def next_parts(
    groups: DecodeGroups,
    admitted: Iterable[Request],
    *,
    stalled: Collection[Request] = (),
    chunk_budget_tokens: int,
) -> tuple[Part, ...]:
    """Choose the parts of the next microbatch and count them as sent; empty if there is no work.

    stalled are members of the groups that wait for a page.

    A chunk that does not fit behind others waits, and a smaller one may pass it. The first is taken
    whatever its size, so that a strategy's long chunk cannot wait for ever.
    """
    parts = [decode_step(request) for request in groups.take_ready(stalled)]
    left = chunk_budget_tokens
    for request in admitted:
        if left <= 0:
            break
        if request.state is not RequestState.PREFILL or request.chunks is None:
            continue
        num_tokens = request.chunks.next_tokens
        if num_tokens and (num_tokens <= left or left == chunk_budget_tokens):
            parts.append(take_chunk(request))
            left -= num_tokens
    return tuple(parts)


def describe(
    parts: tuple[Part, ...], *, epoch: int, seq_no: int, page_tokens: int
) -> SendMicrobatch:
    """Write down parts for the stages; the pages that it names count as known to them."""
    return SendMicrobatch(
        epoch=epoch,
        seq_no=seq_no,
        entries=tuple(_entry(part, page_tokens) for part in parts),
        token_ids=np.concatenate([p.request.token_ids(p.start, p.end) for p in parts]),
        samples=tuple(each for index, part in enumerate(parts) for each in _samples(index, part)),
        prompt_targets=tuple(
            _targets(index, part) for index, part in enumerate(parts) if part.num_targets
        ),
    )


def _entry(part: Part, page_tokens: int) -> PlannedEntry:
    """Describe one part; its row's table grows as far as the part's last position needs."""
    request = part.request
    if request.row is None:
        raise InvariantViolated(f"{request.request_id} is in a microbatch without a row")
    return PlannedEntry(
        request_id=request.request_id,
        row=request.row,
        start=part.start,
        num_tokens=part.end - part.start,
        new_page_ids=request.name_pages(-(-part.end // page_tokens)),
    )


def _samples(entry: int, part: Part) -> list[PlannedSample]:
    """Describe the choices behind one part; end ids are out of reach before min_new_tokens."""
    if not part.num_samples:
        return []
    request, position = part.request, part.output_position
    spec, seen = request.spec, request.take_seen()
    forbidden_ids = tuple(sorted(spec.end_ids)) if position < spec.min_new_tokens else ()
    return [
        PlannedSample(
            entry=entry,
            row=row,
            child=request.child + index,
            position=position,
            sampling=spec.sampling,
            forbidden_ids=forbidden_ids,
            seen=seen,
        )
        for index, row in enumerate(request.rows)
    ]


def _targets(entry: int, part: Part) -> PlannedTargets:
    """Describe the prompt tokens that one part predicts."""
    spec, start = part.request.spec, part.start + 1
    return PlannedTargets(
        entry=entry,
        target_ids=spec.prompt_ids[start : start + part.num_targets],
        top_logprobs=spec.prompt_top_logprobs or 0,
    )
