"""Runs stages one after another in one process: a mesh without its services."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stage_worker.element_type import DtypeChoice
from stage_worker.model_stage import load_stage
from stage_worker.orders import Entry, Microbatch, PromptTargets, SamplingRow
from stage_worker.stage import Stage, StageOutput

NUM_TOP = 3
"""Most likely ids told for each target."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An entry with its tokens, and how to sample its last one; None samples nothing."""

    row: int
    start: int
    token_ids: tuple[int, ...]
    new_page_ids: tuple[int, ...]
    sampling: SamplingRow | None
    target_ids: tuple[int, ...] = ()
    """Prompt tokens whose log-probabilities are wanted, each behind one of token_ids."""


def sampling_row(**changes: Any) -> SamplingRow:
    """Return a greedy sampling row with changes."""
    row = SamplingRow(
        entry=0,
        row=0,
        seed=0,
        child=0,
        position=0,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
    )
    return dataclasses.replace(row, **changes)


class PipelineOfStages:
    """A chain of stages that together hold a whole model."""

    def __init__(self, stages: Sequence[Stage], *, num_pages: int, page_tokens: int) -> None:
        self.stages = tuple(stages)
        self.page_tokens = page_tokens
        self.num_pages = num_pages
        self._seq_no = 0
        for stage in self.stages:
            stage.allocate(num_pages=num_pages, page_tokens=page_tokens)

    @property
    def num_layers(self) -> int:
        """Layers of the whole model."""
        return self.stages[0].description.model_layers

    def stage_of(self, layer: int) -> Stage:
        """Return the stage that holds a layer."""
        return next(each for each in self.stages if layer < each.description.last_layer)

    def run(self, *works: Work) -> tuple[int, ...]:
        """Run one microbatch through all stages and return the sampled ids."""
        return self.output(*works).sampled_ids

    def output(self, *works: Work) -> StageOutput:
        """Run one microbatch through all stages and return what the last one tells."""
        entries = tuple(
            Entry(
                row=work.row,
                start=work.start,
                num_tokens=len(work.token_ids),
                new_page_ids=work.new_page_ids,
            )
            for work in works
        )
        sampling = tuple(
            dataclasses.replace(work.sampling, entry=index, row=work.row)
            for index, work in enumerate(works)
            if work.sampling is not None
        )
        prompt_targets = tuple(
            PromptTargets(
                entry=index,
                target_ids=np.array(work.target_ids, dtype=np.uint32),
                top_logprobs=NUM_TOP,
            )
            for index, work in enumerate(works)
            if work.target_ids
        )
        ids = np.concatenate([np.array(work.token_ids, dtype=np.uint32) for work in works])
        hidden: torch.Tensor | None = None
        output = StageOutput()
        for stage in self.stages:
            about = stage.description
            microbatch = Microbatch(
                epoch=1,
                seq_no=self._seq_no,
                entries=entries,
                token_ids=ids if about.is_first else None,
                sampling=sampling if about.is_last else (),
                prompt_targets=prompt_targets if about.is_last else (),
            )
            out = (
                None
                if about.is_last
                else torch.empty(
                    len(ids), about.hidden_size, dtype=about.dtype, device=about.device
                )
            )
            output = stage.forward(microbatch, hidden, out)
            hidden = out
        self._seq_no += 1
        return output

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        chunk_tokens: int = 1 << 20,
        row: int = 0,
        first_position: int = 0,
        page_ids: Sequence[int] | None = None,
    ) -> list[int]:
        """Answer one prompt greedily; positions before first_position are already in its pages."""
        pages = list(range(self.num_pages)) if page_ids is None else list(page_ids)
        new_pages = tuple(pages[: -(-(len(prompt) + max_new_tokens) // self.page_tokens)])
        sampled: tuple[int, ...] = ()
        for start in range(first_position, len(prompt), chunk_tokens):
            ids = tuple(prompt[start : start + chunk_tokens])
            last = start + len(ids) == len(prompt)
            work = Work(
                row=row,
                start=start,
                token_ids=ids,
                new_page_ids=new_pages,
                sampling=sampling_row() if last else None,
            )
            sampled = self.run(work)
            new_pages = ()
        output = list(sampled)
        while len(output) < max_new_tokens:
            start = len(prompt) + len(output) - 1
            output += self.run(decode_work(row, start, output[-1]))
        for stage in self.stages:
            stage.release(row)
        return output


def decode_work(row: int, start: int, token_id: int) -> Work:
    """Return a greedy decode step of a request whose pages were all given before."""
    return Work(
        row=row, start=start, token_ids=(token_id,), new_page_ids=(), sampling=sampling_row()
    )


def load_pipeline(
    model_path: pathlib.Path,
    borders: Sequence[int],
    *,
    num_pages: int = 64,
    page_tokens: int = 16,
    num_threads: int = 1,
    dtype: DtypeChoice = "auto",
) -> PipelineOfStages:
    """Load a model cut at borders, such as (0, 2, 4) for two stages of two layers."""
    stages = [
        load_stage(model_path, layers=range(first, last), num_threads=num_threads, dtype=dtype)
        for first, last in itertools.pairwise(borders)
    ]
    return PipelineOfStages(stages, num_pages=num_pages, page_tokens=page_tokens)
