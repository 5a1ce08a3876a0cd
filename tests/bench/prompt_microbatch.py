"""Chunks of one long prompt, for benches that drive a stage without a mesh.

Shapes: T tokens of the whole prompt.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stage_worker.orders import Entry, Microbatch, SamplingRow

PAGE_TOKENS = 128
Ids = npt.NDArray[np.uint32]


def prompt_microbatch(
    ids_T: Ids, start: int, num_tokens: int, *, seq_no: int, brings_all: bool = False
) -> Microbatch:
    """Return the chunk from start on, the last with its greedy token.

    It brings its own pages, or all from the prompt's first on where nothing before it has run.
    """
    end = min(start + num_tokens, len(ids_T))
    first_page = 0 if brings_all else -(-start // PAGE_TOKENS)
    entry = Entry(
        row=0,
        start=start,
        num_tokens=end - start,
        new_page_ids=tuple(range(first_page, -(-end // PAGE_TOKENS))),
    )
    return Microbatch(
        epoch=0,
        seq_no=seq_no,
        entries=(entry,),
        token_ids=ids_T[start:end],
        sampling=(SamplingRow.likeliest(0, 0),) if end == len(ids_T) else (),
    )
