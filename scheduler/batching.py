"""What goes into the next microbatch. Pure.

One decode group's rows first, so that nobody waits for a long prompt; then chunks, as far as the
budget goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from chunkmesh.errors import InvariantViolated
from scheduler.actions import PlannedEntry, PlannedSample, PlannedTargets, SendMicrobatch
from scheduler.budget import Budget
from scheduler.decode_groups import DecodeGroups
from scheduler.part import Part, decode_step, work_of
from scheduler.request import Request, RequestState


def next_parts(
    groups: DecodeGroups,
    admitted: Iterable[Request],
    budget: Budget,
    *,
    stalled: Collection[Request] = (),
    max_requests: int | None = None,
) -> tuple[Part, ...]:
    """Choose the parts of the next microbatch and count them as sent; empty if there is no work.

    Args:
        groups: of those who decode.
        admitted: all outputs with a row.
        budget: chooses the chunks.
        stalled: members of the groups that wait for a page.
        max_requests: parts at most; no group has more members.
    """
    rows = [decode_step(request) for request in groups.take_ready(stalled)]
    prefilling = [
        request
        for request in admitted
        if request.state is RequestState.PREFILL and not request.prefill.is_sent
    ]
    most = len(prefilling) if max_requests is None else max_requests - len(rows)
    if not prefilling or most <= 0:
        return tuple(rows)
    chunks = budget.fill(prefilling, beside=work_of(rows), most=most, is_awaited=groups.has_members)
    return (*rows, *chunks)


def describe(
    parts: Sequence[Part],
    *,
    epoch: int,
    seq_no: int,
    page_tokens: int,
    predicted_ms: tuple[float, ...] = (),
) -> SendMicrobatch:
    """Write down parts for the stages; the pages that it names count as known to them.

    predicted_ms is what each stage should take, if that is known.
    """
    return SendMicrobatch(
        epoch=epoch,
        seq_no=seq_no,
        entries=tuple(_entry(part, page_tokens) for part in parts),
        token_ids=np.concatenate([p.request.token_ids(p.start, p.end) for p in parts]),
        samples=tuple(each for index, part in enumerate(parts) for each in _samples(index, part)),
        prompt_targets=tuple(
            _targets(index, part) for index, part in enumerate(parts) if part.num_targets
        ),
        predicted_ms=predicted_ms,
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
