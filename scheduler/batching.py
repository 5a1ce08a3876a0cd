"""What goes into the next microbatch. Pure.

One decode group's rows first, so that nobody waits for a long prompt; then chunks, as far as the
budget goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from chunkmesh.errors import InvariantViolated
from chunkmesh.pages import TokenIds
from scheduler.actions import PlannedEntry, PlannedSample, PlannedTargets, SendMicrobatch
from scheduler.budget import Budget
from scheduler.decode_groups import DecodeGroups
from scheduler.part import Part, decode_step, work_of
from scheduler.request import Request


def next_parts(
    groups: DecodeGroups,
    prefilling: Iterable[Request],
    budget: Budget,
    *,
    stalled: Collection[Request] = (),
    max_requests: int | None = None,
) -> tuple[Part, ...]:
    """Choose the parts of the next microbatch and count them as sent; empty if there is no work.

    Args:
        groups: of those who decode.
        prefilling: all outputs in PREFILL.
        budget: chooses the chunks.
        stalled: members of the groups that wait for a page.
        max_requests: parts at most; no group has more members.
    """
    rows = [decode_step(request) for request in groups.take_ready(stalled)]
    waiting = [request for request in prefilling if not request.prefill.is_sent]
    most = len(waiting) if max_requests is None else max_requests - len(rows)
    if not waiting or most <= 0:
        return tuple(rows)
    chunks = budget.fill(waiting, beside=work_of(rows), most=most, is_awaited=groups.has_members)
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

    Decode rows come before chunks. predicted_ms is what each stage should take, if that is known.
    """
    return SendMicrobatch(
        epoch=epoch,
        seq_no=seq_no,
        entries=tuple([_entry(part, page_tokens) for part in parts]),
        token_ids=_token_ids(parts),
        samples=_samples(parts),
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
    new_page_ids = request.table.name(-(-part.end // page_tokens))
    num_tokens = part.end - part.start
    return PlannedEntry(request.spec.request_id, request.row, part.start, num_tokens, new_page_ids)


def _token_ids(parts: Sequence[Part]) -> TokenIds:
    """Return the ids of all parts: of each row its newest output, then those of chunks."""
    newest = [part.request.output_ids[-1] for part in parts if not part.is_chunk]
    chunks = [part.request.token_ids(part.start, part.end) for part in parts if part.is_chunk]
    return np.concatenate([np.array(newest, dtype=np.uint32), *chunks])


def _samples(parts: Sequence[Part]) -> tuple[PlannedSample, ...]:
    """Describe the choices behind parts; end ids are out of reach before min_new_tokens."""
    samples: list[PlannedSample] = []
    for entry, part in enumerate(parts):
        if not part.num_samples:
            continue
        request, position = part.request, part.output_position
        spec, seen = request.spec, request.take_seen()
        forbidden_ids = tuple(sorted(spec.end_ids)) if position < spec.min_new_tokens else ()
        for child, row in enumerate(request.rows, request.child):
            samples.append(
                PlannedSample(entry, row, child, position, spec.sampling, forbidden_ids, seen)
            )
    return tuple(samples)


def _targets(entry: int, part: Part) -> PlannedTargets:
    """Describe the prompt tokens that one part predicts."""
    spec, start = part.request.spec, part.start + 1
    return PlannedTargets(
        entry=entry,
        target_ids=spec.prompt_ids[start : start + part.num_targets],
        top_logprobs=spec.prompt_top_logprobs or 0,
    )
