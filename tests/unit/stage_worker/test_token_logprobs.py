"""Log-probabilities are log-softmax of the model's logits, finite and in a defined order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.logprobs import TokenLogprobs
from stage_worker.token_logprobs import token_logprobs

LOWEST = np.finfo(np.float32).min


def _of(logits: list[list[float]], ids: list[int], num_top: int) -> TokenLogprobs:
    return token_logprobs(torch.tensor(logits), np.array(ids, dtype=np.uint32), num_top)


@pytest.mark.parametrize("num_top", [0, 1, 5, 299, 300])
def test_equal_log_softmax(num_top: int) -> None:
    """Chosen and most likely ids, row by row."""
    logits = torch.randn(7, 300, generator=torch.Generator().manual_seed(3))
    ids = np.arange(7) * 40
    found = token_logprobs(logits, ids, num_top)
    expected = torch.log_softmax(logits.double(), dim=1)
    top = expected.topk(num_top, dim=1)
    np.testing.assert_allclose(expected[range(7), ids], found.logprobs_T, atol=1e-5)
    np.testing.assert_allclose(top.values, found.top_logprobs_Tk, atol=1e-5)
    assert np.array_equal(top.indices.numpy(), found.top_ids_Tk)
    assert found.logprobs_T.dtype == np.float32
    assert found.top_ids_Tk.dtype == np.uint32


@pytest.mark.parametrize("num_top", [1, 2, 3, 4, 5])
def test_equal_logits_are_told_by_id(num_top: int) -> None:
    """Also which of those that tie for the last place are told."""
    found = _of([[1.0, 3.0, 1.0, 3.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]], [0, 0], num_top)
    assert [[1, 3, 0, 2, 4][:num_top], [4, 3, 2, 1, 0][:num_top]] == found.top_ids_Tk.tolist()


def test_more_than_the_vocabulary() -> None:
    """All ids there are."""
    found = _of([[1.0, 2.0]], [0], 20)
    assert [[1, 0]] == found.top_ids_Tk.tolist()


def test_ruled_out_ids_are_finite() -> None:
    """Minus infinity has no place in JSON (O07)."""
    found = _of([[0.0, -torch.inf, -1e9]], [1], 3)
    assert [LOWEST] == found.logprobs_T.tolist()
    assert [[0, 2, 1]] == found.top_ids_Tk.tolist()
    assert [[0.0, -1e9, LOWEST]] == found.top_logprobs_Tk.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_logits_are_widened(dtype: torch.dtype) -> None:
    """A sum over a vocabulary in half precision would be off in the second digit."""
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(4)).to(dtype)
    found = token_logprobs(logits, np.array([3, 4]), 0)
    expected = torch.log_softmax(logits.double(), dim=1)[[0, 1], [3, 4]]
    np.testing.assert_allclose(expected, found.logprobs_T, atol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_broken_logits_have_the_lowest_log_probability(value: float) -> None:
    """Only finite numbers may reach the wire; other positions keep theirs."""
    found = _of([[0.0, 1.0], [0.0, value]], [0, 0], 1)
    lowest = np.finfo(np.float32).min
    assert found.logprobs_T.tolist() == pytest.approx([-1.3132617, float(lowest)])
    assert np.isfinite(found.top_logprobs_Tk).all()


def test_ids_outside_the_vocabulary_are_bugs() -> None:
    """The order does not fit this model."""
    with pytest.raises(InvariantViolated, match="id 2 of a vocabulary of 2"):
        _of([[0.0, 1.0]], [2], 1)
