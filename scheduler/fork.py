"""Several outputs of one prompt: how they part when the prompt's first tokens are there. Pure.

The prompt is computed once, by child 0, and its last chunk gives n tokens from one row of logits.
From then on each output has its own row. They share the full pages of the prompt, which nobody
writes any more; a partial last page is copied for each, because each writes its own tokens into it.
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkmesh.errors import InvariantViolated
from scheduler.actions import SendCopyPages
from scheduler.request import Request, RequestState


def fork(first: Request, page_tokens: int) -> list[Request]:
    """Make the outputs that the first one stood for; each has yet to get its first token.

    The shared pages still lack the holds of the new outputs.

    Raises:
        InvariantViolated: nothing is reserved for them.
    """
    reserve, first.reserve = first.reserve, None
    if reserve is None:
        raise InvariantViolated(f"{first.request_id}: no rows are reserved for its outputs")
    num_shared = first.num_shared_pages = first.prompt_tokens // page_tokens
    outputs = []
    for index, row in enumerate(reserve.rows):
        output = Request(
            spec=first.spec,
            child=index + 1,
            arrival=first.arrival,
            epoch=first.epoch,
            turn=first.turn,
            state=first.state,
            row=row,
            page_ids=first.page_ids[:num_shared] + list(reserve.page_ids[index : index + 1]),
            num_shared_pages=num_shared,
            is_counted=first.is_counted,
            last_prefill=first.last_prefill,
            prefill_started_s=first.prefill_started_s,
            told_tokens=first.told_tokens,
            num_prompt_logprobs=first.num_prompt_logprobs,
            num_pages_kept=num_shared,
            generation=first.generation,
            num_pages_stored=num_shared,
            num_preemptions=first.num_preemptions,
            num_recoveries=first.num_recoveries,
            num_in_vain=first.num_in_vain,
            recovered_at=first.recovered_at,
        )
        outputs.append(output)
    return outputs


def copies(
    first: Request, others: Sequence[Request], page_tokens: int, *, epoch: int
) -> list[SendCopyPages]:
    """Give those of the others that go on their own copy of the prompt's partial page, if any."""
    num_shared = first.prompt_tokens // page_tokens
    if first.prompt_tokens == num_shared * page_tokens:
        return []
    target_ids = tuple(
        other.page_ids[num_shared] for other in others if other.state is RequestState.DECODE
    )
    if not target_ids:
        return []
    source_ids = (first.page_ids[num_shared],) * len(target_ids)
    return [SendCopyPages(epoch=epoch, source_ids=source_ids, target_ids=target_ids)]
