"""The rule that chooses the form of latent attention, from widths alone."""

from __future__ import annotations

import dataclasses

import pytest

from stage_worker.latent_config import LatentConfig
from stage_worker.latent_form import absorbed_cost, expanded_cost, is_expanded

DEEPSEEK = LatentConfig(
    query_rank=1536, rank=512, plain_dim=128, rope_dim=64, value_dim=128, interleaved=True
)
MILLION = 1_000_000


def test_costs_of_a_small_case() -> None:
    """Three rows behind two tokens see 3 * 2 + 3 + 2 + 1 tokens; widths are those computed."""
    latent = dataclasses.replace(DEEPSEEK, rank=10, plain_dim=3, rope_dim=2, value_dim=4)
    assert absorbed_cost(latent, 3, 2) == 12 * 2 * (10 + 2) + 3 * 10 * (3 + 4)
    assert expanded_cost(latent, 3, 2) == 12 * 2 * (3 + 2) + 5 * 10 * (3 + 4)


def test_values_wider_than_keys() -> None:
    """The kernel wants one width, so keys are as wide as values."""
    wide = dataclasses.replace(DEEPSEEK, rank=10, plain_dim=3, rope_dim=2, value_dim=7)
    assert expanded_cost(wide, 1, 0) == 1 * 2 * 7 + 1 * 10 * (3 + 7)


@pytest.mark.parametrize(
    ("num_before", "first"), [(100, 110), (2048, 165), (8192, 169), (MILLION, 171)]
)
def test_crossover_at_published_widths(num_before: int, first: int) -> None:
    """The longer the context, the more rows must share its expansion: at most 171."""
    assert not is_expanded(DEEPSEEK, first - 1, num_before)
    assert is_expanded(DEEPSEEK, first, num_before)
    assert is_expanded(DEEPSEEK, 10 * first, num_before)


@pytest.mark.parametrize("num_rows", [2, 100, 8192])
def test_start_of_a_prompt(num_rows: int) -> None:
    """Without a context both forms move each token twice, and expanded heads are narrower."""
    assert is_expanded(DEEPSEEK, num_rows, 0)


@pytest.mark.parametrize("num_before", [1, 63, 4096, MILLION])
def test_one_row_is_absorbed(num_before: int) -> None:
    """A decode step would expand all of its context for one token."""
    assert not is_expanded(DEEPSEEK, 1, num_before)


@pytest.mark.parametrize("num_rows", [1, 100, 100_000])
def test_heads_wider_than_the_cache(num_rows: int) -> None:
    """Where expanded heads are no narrower than latents, expanding never helps."""
    latent = dataclasses.replace(DEEPSEEK, rank=96, plain_dim=96)
    assert not is_expanded(latent, num_rows, 0)
    assert not is_expanded(latent, num_rows, MILLION)
