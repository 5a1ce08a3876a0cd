"""Several outputs of one prompt: how they part when the prompt's first tokens are there. Pure.

The prompt is computed once, by child 0, and its last chunk gives n tokens from one row of logits.
From then on each output has its own row. They share the full pages of the prompt, which nobody
writes any more; a partial last page is copied for each, because each writes its own tokens into it.
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkmesh.errors import InvariantViolated
from scheduler.actions import SendCopyPages
from scheduler.page_table import PageTable
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
    num_shared = first.table.num_shared = first.prompt_tokens // page_tokens
    shared = first.table.page_ids[:num_shared]
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
            table=PageTable(
                page_ids=shared + list(reserve.page_ids[index : index + 1]),
                num_shared=num_shared,
                num_kept=num_shared,
                generation=first.table.generation,
            ),
            is_counted=first.is_counted,
            last_prefill=first.last_prefill,
            prefill_started_s=first.prefill_started_s,
            told_tokens=first.told_tokens,
            num_prompt_logprobs=first.num_prompt_logprobs,
            num_pages_stored=num_shared,
            setbacks=first.setbacks,
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
        other.table.page_ids[num_shared] for other in others if other.state is RequestState.DECODE
    )
    if not target_ids:
        return []
    source_ids = (first.table.page_ids[num_shared],) * len(target_ids)
    return [SendCopyPages(epoch=epoch, source_ids=source_ids, target_ids=target_ids)]
