"""Runs several requests through a pipeline of stages at once, as a scheduler might.

A job says how its prompt is cut and where its pages lie, turns say who is in which microbatch.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch

from tests.exactness import recorded_logits
from tests.pipeline_of_stages import PipelineOfStages, Work, sampling_row
from tests.reference import Answer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request and how it is computed."""

    prompt: tuple[int, ...]
    num_tokens: int
    """Of its answer, >= 1."""
    cuts: tuple[int, ...]
    """Lengths of its chunks, used in turn, again and again."""
    page_ids: tuple[int, ...]
    """Enough for all its positions; given when they are needed."""
    hit_tokens: int = 0
    """Leading positions whose pages are filled; < len(prompt), multiple of the page."""


class _Progress:
    """How far a job has come."""

    def __init__(self, job: Job, row: int, page_tokens: int) -> None:
        self.ids: list[int] = []
        self.row = row
        self.logits: list[torch.Tensor] = []
        self._job = job
        self._page_tokens = page_tokens
        self._cuts = itertools.cycle(job.cuts)
        self._end = job.hit_tokens
        self._num_pages = 0

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete."""
        return len(self.ids) == self._job.num_tokens

    def work(self) -> Work:
        """Return the next chunk, or the next decode step."""
        start, known = self._end, [*self._job.prompt, *self.ids]
        length = 1 if self.ids else next(self._cuts)
        token_ids = tuple(known[start : start + length])
        self._end += len(token_ids)
        first_page, self._num_pages = self._num_pages, -(-self._end // self._page_tokens)
        return Work(
            row=self.row,
            start=start,
            token_ids=token_ids,
            new_page_ids=self._job.page_ids[first_page : self._num_pages],
            sampling=sampling_row() if self._end == len(known) else None,
        )

    def answer(self) -> Answer:
        """Return what was sampled."""
        return Answer(ids=tuple(self.ids), logits_nV=torch.stack(self.logits))


def run_jobs(
    pipeline: PipelineOfStages, jobs: Sequence[Job], turns: Sequence[Sequence[int]]
) -> list[Answer]:
    """Answer all jobs; turns are indices of those in a microbatch, in its order, again and again.

    A turn of none but finished jobs takes all that are not.
    """
    last_row = 2 * len(jobs)
    running = [
        _Progress(job, last_row - index, pipeline.page_tokens) for index, job in enumerate(jobs)
    ]
    for turn in itertools.cycle(turns):
        unfinished = [each for each in running if not each.is_done]
        if not unfinished:
            break
        named = [running[index] for index in turn if index < len(running)]
        _run_microbatch(pipeline, [each for each in named if not each.is_done] or unfinished)
    for stage in pipeline.stages:
        for each in running:
            stage.release(each.row)
    return [each.answer() for each in running]


def _run_microbatch(pipeline: PipelineOfStages, members: Sequence[_Progress]) -> None:
    works = [each.work() for each in members]
    sampled = [each for each, work in zip(members, works, strict=True) if work.sampling]
    with recorded_logits() as recorded:
        ids = pipeline.run(*works)
    logits = torch.cat(recorded) if recorded else torch.empty(0)
    for each, token_id, logits_V in zip(sampled, ids, logits, strict=True):
        each.ids.append(token_id)
        each.logits.append(logits_V)
