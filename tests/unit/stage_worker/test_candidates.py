"""The filters keep what transformers keeps; the draw follows the weights, in the order of ids."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stage_worker.candidates import candidates, draw, ranked
from tests.pipeline_of_stages import sampling_row

ALMOST_ONE = 1 - 2.0**-53
SCORES = torch.tensor([0.0, 0.5, 1.0, 0.0, 0.5, 0.0]).log()


def _kept(scores_V: torch.Tensor, **settings: Any) -> list[int]:
    ids_C, weights_C = candidates(
        scores_V, float(scores_V.max()), sampling_row(**({"temperature": 1.0} | settings))
    )
    ids = range(len(scores_V)) if ids_C is None else ids_C.tolist()
    temperature = settings.get("temperature", 1.0)
    expected_V = ((scores_V - scores_V.max()) / temperature).exp()
    assert torch.allclose(expected_V[list(ids)], weights_C)
    return list(ids)


def _kept_by_transformers(scores_V: torch.Tensor, settings: dict[str, Any]) -> list[int]:
    warpers: LogitsProcessorList = LogitsProcessorList()
    warpers.append(TemperatureLogitsWarper(settings["temperature"]))
    if settings["top_k"]:
        warpers.append(TopKLogitsWarper(settings["top_k"]))
    if settings["top_p"] < 1:
        warpers.append(TopPLogitsWarper(settings["top_p"]))
    if settings["min_p"]:
        warpers.append(MinPLogitsWarper(settings["min_p"]))
    warped: torch.Tensor = warpers(torch.zeros(1, 1, dtype=torch.int64), scores_V[None])[0]
    return warped.isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize("spread", [0.1, 2.0, 8.0])
@pytest.mark.parametrize("top_k", [0, 1, 40])
@pytest.mark.parametrize("top_p", [0.05, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.4, 1.0])
def test_filters_keep_what_transformers_keeps(
    spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    """The order and the meaning of filters are those that users know, flat rows and steep ones."""
    settings = {"temperature": 0.7, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        scores_V = spread * torch.randn(3000, generator=generator)
        assert _kept_by_transformers(scores_V, settings) == _kept(scores_V, **settings)


@pytest.mark.parametrize("num_kept", [1, 63, 64, 65, 1023, 1024, 1025, 2999, 3000])
def test_top_p_of_flat_rows(num_kept: int) -> None:
    """However many ids it needs; of equal ones the lower stay."""
    top_p = (num_kept - 0.5) / 3000
    assert list(range(num_kept)) == _kept(torch.zeros(3000), top_p=top_p)


@pytest.mark.parametrize("top_k", [0, 50, 51])
def test_nothing_is_ranked_without_filters(top_k: int) -> None:
    """Ordering a vocabulary costs many times what the draw itself does."""
    with mock.patch("stage_worker.candidates.ranked", side_effect=AssertionError):
        assert list(range(50)) == _kept(torch.randn(50), top_k=top_k)


@pytest.mark.parametrize("num_ids", [1, 2, 3, 4, 5, 6])
def test_equal_values_are_ranked_by_id(num_ids: int) -> None:
    """Narrow logits are often equal; which of them stay must not hang on the device."""
    values = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 3.0])
    assert [1, 3, 5, 2, 4, 0][:num_ids] == ranked(values, num_ids).tolist()


@pytest.mark.parametrize(
    ("point", "expected"),
    [(0.0, 1), (0.24, 1), (0.26, 2), (0.74, 2), (0.76, 4), (ALMOST_ONE, 4)],
)
def test_draw_walks_ids_in_ascending_order(point: float, expected: int) -> None:
    """One rule for all devices: shares lie in the order of ids, ids without weight have none."""
    assert expected == draw(SCORES, 0.0, sampling_row(temperature=1.0), point)


@pytest.mark.parametrize(("point", "expected"), [(0.0, 1), (0.3, 1), (0.4, 2), (ALMOST_ONE, 2)])
def test_draw_of_filtered_ids(point: float, expected: int) -> None:
    """Shares are of what the filters left; of equal ids the lower stays."""
    assert expected == draw(SCORES, 0.0, sampling_row(temperature=1.0, top_k=2), point)


def test_draw_follows_the_weights() -> None:
    """Points spread evenly hit each id as often as its probability says."""
    scores_V = torch.randn(100, generator=torch.Generator().manual_seed(2))
    points = [(n + 0.5) / 5000 for n in range(5000)]
    row = sampling_row(temperature=0.5)
    ids = torch.tensor([draw(scores_V, float(scores_V.max()), row, point) for point in points])
    assert torch.allclose(
        torch.softmax(scores_V / 0.5, 0), ids.bincount(minlength=100) / 5000, atol=3e-4
    )
