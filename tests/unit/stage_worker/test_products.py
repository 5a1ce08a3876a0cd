"""Matrix products in narrow types: float32 sums, whatever this CPU multiplies by itself."""

from __future__ import annotations

import pytest
import torch

from stage_worker import products

NARROW = [torch.bfloat16, torch.float16]


@pytest.fixture(params=[False, True], ids=["widened", "by itself"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Take narrow types as slow, in blocks smaller than any matrix here, or as fast."""
    types = frozenset((torch.float32, *NARROW)) if request.param else frozenset((torch.float32,))
    monkeypatch.setattr(products, "_FAST_TYPES", types)
    monkeypatch.setattr(products, "_BLOCK_NUMBERS", 1000)
    return bool(request.param)


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def _rounding(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit in the last place, and a little for the order of float32 sums."""
    return exact.abs() * torch.finfo(dtype).eps * 0.51 + 1e-4


@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("dtype", NARROW)
def test_a_product_is_rounded_once(fast: bool, dtype: torch.dtype, num_rows: int) -> None:
    """Sums in two bytes would lose small terms."""
    x_TK, w_KN = _random(num_rows, 300, dtype=dtype), _random(500, 300, dtype=dtype).t()
    exact = x_TK.double() @ w_KN.double()
    result = products.product(x_TK, w_KN)
    assert result.dtype == dtype
    assert bool(((result.double() - exact).abs() <= _rounding(exact, dtype)).all())


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_wide_results_are_not_rounded(fast: bool, dtype: torch.dtype, num_rows: int) -> None:
    """Logits would tie if they were."""
    x_TK, w_KN = _random(num_rows, 300, dtype=dtype), _random(500, 300, dtype=dtype).t()
    out_TN = torch.empty(num_rows, 500)
    products.multiply(x_TK, w_KN, out_TN)
    assert torch.allclose(x_TK.double() @ w_KN.double(), out_TN.double(), atol=1e-4)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_a_product_is_added(fast: bool, dtype: torch.dtype, num_rows: int) -> None:
    """As the residual stream takes it."""
    total = _random(num_rows, 500, dtype=dtype)
    x_TK, w_KN = _random(num_rows, 300, dtype=dtype), _random(500, 300, dtype=dtype).t()
    product = x_TK.double() @ w_KN.double()
    exact = total.double() + product
    products.add_product(total, x_TK, w_KN)
    error = (total.double() - exact).abs()
    assert bool((error <= _rounding(exact, dtype) + _rounding(product, dtype)).all())


@pytest.mark.parametrize("dtype", NARROW)
def test_products_by_head(fast: bool, dtype: torch.dtype) -> None:
    """Each head has a matrix of its own."""
    x_HTK, w_HKN = _random(7, 3, 20, dtype=dtype), _random(7, 20, 30, dtype=dtype)
    exact = x_HTK.double() @ w_HKN.double()
    result = products.products_by_head(x_HTK, w_HKN)
    assert result.dtype == dtype
    assert bool(((result.double() - exact).abs() <= _rounding(exact, dtype)).all())
