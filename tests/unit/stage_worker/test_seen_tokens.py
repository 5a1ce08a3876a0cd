"""Penalties follow from what a row has seen, however its counts came about."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import RepetitionPenaltyLogitsProcessor

from chunkmesh.errors import InvariantViolated
from chunkmesh.token_counts import TokenCounts, count_tokens
from stage_worker.orders import Penalties
from stage_worker.seen_tokens import SeenTokens
from tests.pipeline_of_stages import sampling_row

VOCAB = 40
ROW = 3


def _penalties(
    *, frequency: float = 0.0, presence: float = 0.0, repetition: float = 1.0
) -> Penalties:
    return Penalties(frequency=frequency, presence=presence, repetition=repetition, seen=None)


def _counts(ids: list[int]) -> TokenCounts:
    return count_tokens(np.array(ids, dtype=np.uint32))


def _penalised(seen: SeenTokens, scores_V: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    scores_V = scores_V.clone()
    seen.penalise(scores_V, sampling_row(row=ROW), penalties)
    return scores_V


def _scores(seed: int = 1) -> torch.Tensor:
    return 5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("repetition", [0.5, 1.0, 1.3, 2.0])
def test_repetition_is_that_of_transformers(repetition: float) -> None:
    """Users bring their values from there; counts do not matter."""
    ids = [1, 1, 1, 7, 30, 39]
    seen = SeenTokens()
    seen.begin(ROW, _counts(ids))
    processor = RepetitionPenaltyLogitsProcessor(repetition)
    expected = processor(torch.tensor([ids]), _scores()[None].clone())[0]
    assert torch.equal(expected, _penalised(seen, _scores(), _penalties(repetition=repetition)))


def test_frequency_counts_and_presence_does_not() -> None:
    """Score - frequency * count - presence, for ids seen only."""
    seen = SeenTokens()
    seen.begin(ROW, _counts([5, 5, 5, 9]))
    change = _penalised(seen, _scores(), _penalties(frequency=0.25, presence=0.5)) - _scores()
    expected = torch.zeros(VOCAB)
    expected[5], expected[9] = -3 * 0.25 - 0.5, -0.25 - 0.5
    assert torch.allclose(expected, change, atol=1e-6)


def test_repetition_goes_before_the_others() -> None:
    """4 / 2 - 1 - 0.5, and -4 * 2 - 1 - 0.5."""
    seen = SeenTokens()
    seen.begin(ROW, _counts([0, 1]))
    penalties = _penalties(repetition=2.0, frequency=1.0, presence=0.5)
    assert [0.5, -9.5] == _penalised(seen, torch.tensor([4.0, -4.0]), penalties).tolist()


def test_ruled_out_ids_stay_ruled_out() -> None:
    """Penalties of minus infinity must not make NaN; a tiny divisor must not make infinity."""
    seen = SeenTokens()
    seen.begin(ROW, _counts([0, 1]))
    scores = torch.tensor([-torch.inf, 3.0])
    low, high = _penalised(seen, scores, _penalties(repetition=1e-39, frequency=-2.0)).tolist()
    assert (float("-inf"), torch.finfo(torch.float32).max) == (low, high)


@given(
    ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60), handed_over=st.integers(1, 60)
)
def test_counts_may_be_handed_over_anywhere(ids: list[int], handed_over: int) -> None:
    """Told up to some token and counted from there, or counted from the start: the same."""
    whole, resumed = SeenTokens(), SeenTokens()
    whole.begin(ROW, _counts(ids[:1]))
    for id_ in ids[1:]:
        whole.add(ROW, id_)
    resumed.begin(ROW, _counts(ids[:1]))  # before a preemption
    resumed.begin(ROW, _counts(ids[:handed_over]))
    for id_ in ids[handed_over:]:
        resumed.add(ROW, id_)
    penalties = _penalties(repetition=1.3, frequency=0.7, presence=0.1)
    expected = _penalised(whole, _scores(), penalties)
    assert torch.equal(expected, _penalised(resumed, _scores(), penalties))
    counts = np.bincount(ids, minlength=VOCAB)
    formula = torch.where(_scores() > 0, _scores() / 1.3, _scores() * 1.3)
    formula = formula - 0.7 * torch.from_numpy(counts) - 0.1
    formula = torch.where(torch.from_numpy(counts) > 0, formula, _scores()).float()
    assert torch.allclose(formula, expected, atol=1e-5)


def test_rows_are_apart() -> None:
    """What one row sees does not penalise another."""
    seen = SeenTokens()
    seen.begin(ROW, _counts([1]))
    seen.begin(4, _counts([2]))
    seen.add(4, 3)
    changed = _penalised(seen, _scores(), _penalties(presence=1.0)) != _scores()
    assert [1] == changed.nonzero().flatten().tolist()


def test_what_was_told_is_only_read() -> None:
    """The order belongs to the sender."""
    told = _counts([1, 1, 2])
    seen = SeenTokens()
    seen.begin(ROW, told)
    seen.add(ROW, 1)
    seen.add(ROW, 30)
    assert ([1, 2], [2, 1]) == (told.ids.tolist(), told.counts.tolist())


def test_released_rows_are_unknown() -> None:
    """The next request in this row must not inherit counts; nor may memory grow."""
    seen = SeenTokens()
    seen.begin(ROW, _counts([1]))
    seen.begin(4, _counts([1]))
    seen.release(ROW)
    seen.release(99)
    assert len(seen) == 1
    with pytest.raises(InvariantViolated, match="row 3"):
        _penalised(seen, _scores(), _penalties(presence=1.0))
    seen.clear()
    assert len(seen) == 0


def test_ids_outside_the_vocabulary_are_bugs() -> None:
    """Memory behind the logits is never written."""
    seen = SeenTokens()
    seen.begin(ROW, _counts([1, VOCAB]))
    with pytest.raises(InvariantViolated, match="id 40 of a vocabulary of 40"):
        _penalised(seen, _scores(), _penalties(presence=1.0))
