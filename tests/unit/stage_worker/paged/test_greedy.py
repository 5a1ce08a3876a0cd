"""Greedy choices on the device are the sampler's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from chunkmesh.token_counts import TokenCounts
from stage_worker.orders import Entry, Microbatch, Penalties, PromptTargets, SamplingRow
from stage_worker.paged.greedy import ChosenIds, is_greedy, likeliest_ids
from stage_worker.sampler import Sampler
from stage_worker.stage import StageOutput
from tests.pipeline_of_stages import sampling_row

SEEN = TokenCounts(ids=np.array([1], dtype=np.uint32), counts=np.array([1], dtype=np.uint32))


def microbatch(*rows: SamplingRow, targets: tuple[PromptTargets, ...] = ()) -> Microbatch:
    """Return a microbatch of one token that is sampled by these rows."""
    entry = Entry(row=0, start=0, num_tokens=1, new_page_ids=())
    return Microbatch(
        epoch=0, seq_no=0, entries=(entry,), token_ids=None, sampling=rows, prompt_targets=targets
    )


def test_ids_are_those_of_the_sampler() -> None:
    """Ties go to the lowest id, and rows without a choice are told, wherever it is computed."""
    logits_nV = torch.randn(7, 50, generator=torch.Generator().manual_seed(1))
    logits_nV[1, 40] = logits_nV[1, 7] = 9.0
    logits_nV[2] = 0.0
    logits_nV[3, 5] = math.nan
    logits_nV[4, 5] = math.inf
    logits_nV[5] = -math.inf
    logits_nV[6, :49] = -math.inf
    rows = [dataclasses.replace(sampling_row(), entry=row, row=row) for row in range(7)]
    expected = Sampler().sample(rows, logits_nV, range(7))
    actual = ChosenIds(likeliest_ids(logits_nV), range(7)).output()
    assert actual == StageOutput(sampled_ids=expected.ids, without_choice=expected.without_choice)
    assert (actual.sampled_ids[1:3], actual.without_choice) == ((7, 0), (3, 4, 5))


def test_sampling_rows_find_the_id_of_their_entry() -> None:
    """Several outputs of one request are chosen from the same logits, in any order."""
    output = ChosenIds(torch.tensor([30, -1, 10]), [2, 1, 0, 2]).output()
    assert output == StageOutput(sampled_ids=(10, 0, 30, 10), without_choice=(1,))


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.5},
        {"logit_bias": ((1, 1.0),)},
        {"forbidden_ids": (1,)},
        {"top_logprobs": 0},
        {"penalties": Penalties(frequency=0.1, presence=0, repetition=1, seen=SEEN)},
    ],
)
def test_whoever_wants_more_than_the_largest_logit_is_not_greedy(changes: dict[str, Any]) -> None:
    """One such row makes the whole microbatch go through the sampler."""
    assert is_greedy(microbatch(sampling_row()))
    assert not is_greedy(microbatch(sampling_row(), sampling_row(**changes)))


def test_prompt_targets_are_not_greedy() -> None:
    """They want logits of every row."""
    targets = PromptTargets(entry=0, target_ids=np.array([1], dtype=np.uint32), top_logprobs=0)
    assert not is_greedy(microbatch(sampling_row(), targets=(targets,)))
