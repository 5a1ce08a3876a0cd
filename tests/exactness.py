"""Compares stages with transformers: ids, and the logits of every answered token."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

from stage_worker.head import Head
from tests.pipeline_of_stages import PipelineOfStages, load_pipeline
from tests.reference import Reference

TOLERANCE = 1e-4
"""Largest difference of logits allowed, as a part of their range."""


class Expected:
    """What transformers answers to one prompt."""

    def __init__(self, model_path: pathlib.Path, prompt: Sequence[int], num_tokens: int) -> None:
        reference = Reference(model_path)
        self.prompt = list(prompt)
        self.ids = reference.generate(prompt, num_tokens)
        with torch.inference_mode():
            answer = reference.model(torch.tensor([self.prompt + self.ids[:-1]]))
        self.logits_nV: torch.Tensor = answer.logits[0, len(prompt) - 1 :]

    def check(self, pipeline: PipelineOfStages, **how: Any) -> None:
        """Assert that a pipeline answers the same; how goes to its generate."""
        rows: list[torch.Tensor] = []
        compute = Head.logits

        def record(head: Head, hidden_nD: torch.Tensor) -> torch.Tensor:
            logits_nV = compute(head, hidden_nD)
            rows.extend(logits_nV.clone())
            return logits_nV

        with mock.patch.object(Head, "logits", record):
            ids = pipeline.generate(self.prompt, len(self.ids), **how)
        assert self.ids == ids
        span = float(self.logits_nV.max() - self.logits_nV.min())
        error = float((torch.stack(rows) - self.logits_nV).abs().max()) / span
        assert error <= TOLERANCE


def check_model(model_path: pathlib.Path, prompt: Sequence[int], num_tokens: int = 12) -> None:
    """Compare a model of four layers whole, and split and chunked."""
    expected = Expected(model_path, prompt, num_tokens)
    expected.check(load_pipeline(model_path, (0, 4)))
    expected.check(load_pipeline(model_path, (0, 1, 4)), chunk_tokens=23)


def copy_pages(source: PipelineOfStages, target: PipelineOfStages, page_ids: Sequence[int]) -> None:
    """Copy source's first pages, as bytes, into pages of target, a single stage."""
    for stage in source.stages:
        for layer in range(stage.description.first_layer, stage.description.last_layer):
            for index, page_id in enumerate(page_ids):
                data = stage.read_page(layer, index)
                assert stage.page_layer_bytes() == data.nbytes
                target.stages[0].write_page(layer, page_id, data)
