"""Compares stages with transformers: ids, and the logits of every answered token."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from stage_worker.head import Head
from stage_worker.paged.head import PagedHead
from tests.pipeline_of_stages import PipelineOfStages, load_pipeline
from tests.reference import Answer, Reference

TOLERANCE = 1e-4
"""Largest difference of logits allowed, as a part of their range."""

NEAR_TIE = 2e-5
"""Two best logits closer than this, as a part of the range, may change places by rounding."""


class Expected:
    """What transformers answers to one prompt."""

    def __init__(self, model_path: pathlib.Path, prompt: Sequence[int], num_tokens: int) -> None:
        self.model_path = model_path
        self.prompt = list(prompt)
        self.answer = Reference(model_path).answer(prompt, num_tokens)
        self.ids = list(self.answer.ids)

    def check(self, pipeline: PipelineOfStages, **how: Any) -> None:
        """Assert that a pipeline answers the same; how goes to its generate."""
        with recorded_logits() as rows:
            ids = pipeline.generate(self.prompt, len(self.ids), **how)
        check_same(self.answer, Answer(ids=tuple(ids), logits_nV=torch.cat(rows)))


@contextlib.contextmanager
def recorded_logits() -> Iterator[list[torch.Tensor]]:
    """Note the logits [n, V] of the sampled entries of each microbatch that runs inside."""
    recorded: list[torch.Tensor] = []

    def recording(compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
        def logits(head: Any, hidden_nD: torch.Tensor) -> torch.Tensor:
            logits_nV = compute(head, hidden_nD)
            recorded.append(logits_nV.to("cpu", copy=True))
            return logits_nV

        return logits

    with (
        mock.patch.object(Head, "logits", recording(Head.logits)),
        mock.patch.object(PagedHead, "logits", recording(PagedHead.logits)),
    ):
        yield recorded


def check_same(expected: Answer, actual: Answer) -> None:
    """Assert that ids are equal and logits within the tolerance; a NaN is outside of it."""
    assert expected.ids == actual.ids
    error = logits_error(expected.logits_nV, actual.logits_nV)
    assert error <= TOLERANCE


def logits_error(expected_nV: torch.Tensor, actual_nV: torch.Tensor) -> float:
    """Return the largest difference as a part of the range of what was expected."""
    span = float(expected_nV.max() - expected_nV.min())
    return float((actual_nV - expected_nV).abs().max()) / span


def has_near_tie(answer: Answer) -> bool:
    """Return whether rounding might choose another id somewhere."""
    best_n2 = answer.logits_nV.topk(2, dim=1).values
    span = float(answer.logits_nV.max() - answer.logits_nV.min())
    return float((best_n2[:, 0] - best_n2[:, 1]).min()) < NEAR_TIE * span


def check_model(
    model_path: pathlib.Path, prompt: Sequence[int], num_tokens: int = 12, **load: Any
) -> None:
    """Compare a model of four layers whole, and split and chunked; load goes to load_pipeline."""
    expected = Expected(model_path, prompt, num_tokens)
    expected.check(load_pipeline(model_path, (0, 4), **load))
    expected.check(load_pipeline(model_path, (0, 1, 4), **load), chunk_tokens=23)


def copy_pages(source: PipelineOfStages, target: PipelineOfStages, page_ids: Sequence[int]) -> None:
    """Copy source's first pages, as bytes, into pages of target, however each is split."""
    for layer in range(source.num_layers):
        reader, writer = source.stage_of(layer), target.stage_of(layer)
        for index, page_id in enumerate(page_ids):
            data = reader.read_page(layer, index)
            assert reader.page_layer_bytes() == data.nbytes
            writer.write_page(layer, page_id, data)
