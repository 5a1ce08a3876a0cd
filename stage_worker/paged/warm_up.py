"""Runs dummy microbatches on a stage that was just loaded, so that its kernels are compiled.

Each stage runs its own, and no activation crosses to another: all stages compile at once. The
largest one also makes the scratch memory as large as serving will. What fails ends the worker.

Source: https://github.com/sgl-project/sglang (its kernel warm-up for pipelined stages)
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import structlog
import torch

from chunkmesh.side_door import Readiness
from stage_worker.orders import Entry, Microbatch, SamplingRow
from stage_worker.paged.warm_up_plan import PAGE_TOKENS, DummyForward
from stage_worker.stage import Stage

_log = structlog.get_logger(__name__)
_MOST_SAMPLED = 128
"""Rows of a microbatch that are sampled: logits of a row are as long as the vocabulary."""
_ALMOST = 0.99
"""Most progress that is told before the end."""


class WarmUp:
    """One warm-up; readiness may be asked from any thread."""

    def __init__(self, plan: Sequence[DummyForward]) -> None:
        self._plan = tuple(plan)
        self._num_done = 0
        self._is_done = False

    def readiness(self) -> Readiness | None:
        """Say how far it is; None once it is done."""
        if self._is_done or not self._plan:
            return None
        index = min(self._num_done, len(self._plan) - 1)
        return Readiness(
            ready=False,
            state="warming up",
            reason=f"kernels are compiled: {self._plan[index]}",
            progress=min(self._num_done / len(self._plan), _ALMOST),
        )

    def run(self, stage: Stage) -> None:
        """Run the plan, if there is any, on the thread that owns the stage; drops its pool.

        All first tokens are in the same few pages, since their contents mean nothing.
        """
        begun_s = time.monotonic()
        if not self._plan:
            self._is_done = True
            return
        most_tokens = max(each.start + each.num_tokens for each in self._plan)
        num_pages = max(-(-most_tokens // PAGE_TOKENS), 2)
        stage.allocate(num_pages=num_pages, page_tokens=PAGE_TOKENS)
        for forward in self._plan:
            entries = tuple(_entries(forward, num_pages))
            _run(stage, entries)
            for entry in entries:
                stage.release(entry.row)
            self._num_done += 1
        stage.allocate(num_pages=1, page_tokens=1)
        self._is_done = True
        seconds = round(time.monotonic() - begun_s, 2)
        _log.info("kernels are warm", forwards=len(self._plan), seconds=seconds)


def _entries(forward: DummyForward, num_pages: int) -> list[Entry]:
    if forward.is_decode:
        return [
            Entry(row=row, start=0, num_tokens=1, new_page_ids=(row % num_pages,))
            for row in range(forward.num_tokens)
        ]
    num_filled = -(-(forward.start + forward.num_tokens) // PAGE_TOKENS)
    pages = tuple(range(num_filled))
    return [Entry(row=0, start=forward.start, num_tokens=forward.num_tokens, new_page_ids=pages)]


def _run(stage: Stage, entries: tuple[Entry, ...]) -> None:
    about = stage.description
    num_tokens = sum(entry.num_tokens for entry in entries)
    hidden_TD = torch.zeros(num_tokens, about.hidden_size, dtype=about.dtype, device=about.device)
    sampling = tuple(SamplingRow.likeliest(index, entry.row) for index, entry in enumerate(entries))
    microbatch = Microbatch(
        epoch=0,
        seq_no=0,
        entries=entries,
        token_ids=np.zeros(num_tokens, dtype=np.uint32) if about.is_first else None,
        sampling=sampling[:_MOST_SAMPLED] if about.is_last else (),
    )
    stage.forward(
        microbatch,
        None if about.is_first else hidden_TD,
        None if about.is_last else torch.empty_like(hidden_TD),
    )
