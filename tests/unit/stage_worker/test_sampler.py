"""What the sampler may choose, and what its choice may depend on."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from stage_worker.sampler import sample
from tests.pipeline_of_stages import sampling_row

VOCAB = 264
NUM_DRAWS = 400


def _logits(**by_id: float) -> torch.Tensor:
    """Return a row of -30 with some ids raised, given as id_65=2.0."""
    row = torch.full((VOCAB,), -30.0)
    for name, value in by_id.items():
        row[int(name.removeprefix("id_"))] = value
    return row


def _draws(logits: torch.Tensor, **settings: Any) -> collections.Counter[int]:
    return collections.Counter(
        sample(logits, sampling_row(seed=7, position=position, **settings))
        for position in range(NUM_DRAWS)
    )


def test_greedy_takes_the_largest_logit() -> None:
    """Temperature 0 ignores every other setting."""
    logits = _logits(id_65=2.0, id_66=2.5)
    assert sample(logits, sampling_row(top_k=5, top_p=0.1, min_p=0.5)) == 66


@pytest.mark.parametrize("temperature", [0, 1e-45, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_do_not_overflow(temperature: float) -> None:
    """A half-precision row divided by 1e-4 leaves the range of half precision (O08)."""
    logits = torch.zeros(VOCAB, dtype=torch.float16)
    logits[65], logits[66] = 20, 19
    assert sample(logits, sampling_row(seed=3, temperature=temperature)) == 65


@pytest.mark.parametrize("top_k", [0, 1, VOCAB, VOCAB + 1, 9_999_999])
def test_top_k_beyond_the_vocabulary_keeps_all(top_k: int) -> None:
    """An oversized top_k is clamped, not an error (O08)."""
    seen = _draws(_logits(id_65=1.0, id_66=1.0), temperature=1.0, top_k=top_k)
    assert set(seen) == ({65} if top_k == 1 else {65, 66})


def test_draws_follow_the_probabilities() -> None:
    """Logits ln 3 apart at temperature 1 mean three to one."""
    seen = _draws(_logits(id_65=1.0986123, id_66=0.0), temperature=1.0)
    assert seen[65] / NUM_DRAWS == pytest.approx(0.75, abs=0.06)
    assert set(seen) == {65, 66}


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {65, 66}),
        ({"top_p": 0.49}, {65}),
        ({"top_p": 0.51}, {65, 66}),
        ({"top_p": 0.8, "top_k": 2}, {65, 66}),
        ({"min_p": 0.7}, {65}),
        ({"min_p": 0.5}, {65, 66}),
        ({"forbidden_ids": (65, 66)}, {67}),
    ],
)
def test_filters(settings: dict[str, object], allowed: set[int]) -> None:
    """Probabilities here are 0.5, 0.3 and 0.2."""
    logits = _logits(id_65=-0.693147, id_66=-1.203973, id_67=-1.609438)
    assert set(_draws(logits, temperature=1.0, **settings)) == allowed


def test_forbidden_ids_hold_for_greedy() -> None:
    """End tokens before min_new_tokens are skipped without changing the logits."""
    logits = _logits(id_65=2.0, id_66=1.0)
    assert sample(logits, sampling_row(forbidden_ids=(65,))) == 66
    assert float(logits[65]) == 2.0


def test_seed_and_position_decide() -> None:
    """The same request draws the same ids whenever it runs (O06)."""
    logits = torch.zeros(VOCAB)
    first = [sample(logits, sampling_row(seed=42, position=p, temperature=0.8)) for p in range(16)]
    again = [sample(logits, sampling_row(seed=42, position=p, temperature=0.8)) for p in range(16)]
    other = [sample(logits, sampling_row(seed=43, position=p, temperature=0.8)) for p in range(16)]
    assert first == again
    assert first != other


def test_impossible_tokens_are_never_drawn() -> None:
    """A probability of exactly zero is not rounded into a choice."""
    logits = torch.full((VOCAB,), -torch.inf)
    logits[100:103] = 0.0
    assert set(_draws(logits, temperature=1.0)) == {100, 101, 102}
