"""Runs dummy microbatches on a stage that was just loaded, so that its kernels are compiled.

Kernels are compiled for element types, head counts and page sizes; not for lengths.
"""

from __future__ import annotations

import time

import numpy as np
import structlog
import torch

from stage_worker.orders import Entry, Microbatch, SamplingRow
from stage_worker.stage import Stage

_log = structlog.get_logger(__name__)
PAGE_TOKENS = 128
"""Of the pages that kernels are compiled for; those of another size compile with the first use."""
_CHUNK_TOKENS = 200
_ROWS = (1, 2, 4, 8, 16, 32)
"""Decode rows of microbatches: how many programs a sequence's keys are cut to depends on it."""


def warm_up(stage: Stage) -> None:
    """Run a chunk, a chunk behind a prefix and decode rows; the pool is small afterwards."""
    begun_s = time.monotonic()
    stage.allocate(num_pages=max(_ROWS) + 4, page_tokens=PAGE_TOKENS)
    for start in (0, _CHUNK_TOKENS):
        pages = (0, 1) if start == 0 else (2, 3)
        _run(stage, (_entry(0, start, _CHUNK_TOKENS, pages),))
    for num_rows in _ROWS:
        entries = tuple(_entry(row + 1, 0, 1, (row + 4,)) for row in range(num_rows))
        _run(stage, entries)
        for entry in entries:
            stage.release(entry.row)
    stage.allocate(num_pages=1, page_tokens=1)
    _log.info("kernels are warm", seconds=round(time.monotonic() - begun_s, 2))


def _entry(row: int, start: int, num_tokens: int, page_ids: tuple[int, ...]) -> Entry:
    return Entry(row=row, start=start, num_tokens=num_tokens, new_page_ids=page_ids)


def _run(stage: Stage, entries: tuple[Entry, ...]) -> None:
    about = stage.description
    num_tokens = sum(entry.num_tokens for entry in entries)
    hidden_TD = torch.zeros(num_tokens, about.hidden_size, dtype=about.dtype, device=about.device)
    sampling = tuple(_greedy(index, entry.row) for index, entry in enumerate(entries))
    microbatch = Microbatch(
        epoch=0,
        seq_no=0,
        entries=entries,
        token_ids=np.zeros(num_tokens, dtype=np.uint32) if about.is_first else None,
        sampling=sampling if about.is_last else (),
    )
    stage.forward(
        microbatch,
        None if about.is_first else hidden_TD,
        None if about.is_last else torch.empty_like(hidden_TD),
    )


def _greedy(entry: int, row: int) -> SamplingRow:
    return SamplingRow(
        entry=entry,
        row=row,
        seed=0,
        child=0,
        position=0,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
    )
