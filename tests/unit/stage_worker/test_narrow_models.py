"""Models in two-byte types: how far from float32, and what must be equal to the bit.

The reference is transformers in float32 on the same rounded weights, so that only arithmetic
differs; figures are root mean squares over all logits of 30 tokens after 150, as parts of the
logits' range. Transformers' own eager run in the narrow type is off by 0.3 to 0.9 % in bfloat16 and
0.03 to 0.12 % in float16, by family; stages by 0.2 to 0.6 % and 0.03 to 0.09 %, in each of 42 cases
at most 1.00 times what transformers is. They may be off by LIMIT, and by FACTOR times transformers.
"""

from __future__ import annotations

import itertools
import pathlib

import pytest
import torch

from stage_worker.model_stage import load_stage
from tests.exactness import copy_pages
from tests.narrow_models import (
    deviation,
    make_narrow,
    make_narrow_without_choice,
    reference_logits,
    stage_logits,
    store_as,
)
from tests.pipeline_of_stages import load_pipeline
from tests.random_ids import make_prompt
from tests.tiny_models import FAMILIES, edit_config, make_tiny

LIMIT = {"bfloat16": 0.01, "float16": 0.0015}
FACTOR = 1.5
PROMPT, ANSWER = make_prompt(150, seed=1), make_prompt(30, seed=51)
CASES = [(family, "bfloat16") for family in FAMILIES] + [("Llama", "float16")]


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_narrow_arithmetic_is_as_good_as_transformers(
    tmp_path: pathlib.Path, family: str, dtype: str
) -> None:
    """Whole, on scattered pages, or split and chunked: see the module's text for the figures."""
    make_narrow_without_choice(tmp_path, family, dtype)
    exact = reference_logits(tmp_path, "float32", PROMPT, ANSWER)
    peer = deviation(reference_logits(tmp_path, dtype, PROMPT, ANSWER), exact)
    whole = stage_logits(load_pipeline(tmp_path, (0, 4)), PROMPT, ANSWER)
    cut = stage_logits(load_pipeline(tmp_path, (0, 1, 4)), PROMPT, ANSWER, chunk_tokens=23)
    pages = list(range(63, -1, -2))
    scattered = stage_logits(load_pipeline(tmp_path, (0, 4)), PROMPT, ANSWER, page_ids=pages)
    for logits in (whole, cut, scattered):
        assert 0 < deviation(logits, exact) <= min(LIMIT[dtype], FACTOR * peer)


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_split_equals_whole_to_the_bit(tmp_path: pathlib.Path, family: str, dtype: str) -> None:
    """What crosses a border is what the next layer would have read anyway."""
    make_narrow(tmp_path, family, dtype)
    whole = load_pipeline(tmp_path, (0, 4))
    expected = stage_logits(whole, PROMPT, ANSWER[:6], chunk_tokens=64)
    for num_inner in (1, 2, 3):
        for inner in itertools.combinations((1, 2, 3), num_inner):
            split = load_pipeline(tmp_path, (0, *inner, 4))
            assert torch.equal(expected, stage_logits(split, PROMPT, ANSWER[:6], chunk_tokens=64))


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_hit_equals_recomputed_to_the_bit(tmp_path: pathlib.Path, family: str, dtype: str) -> None:
    """Pages that travelled as bytes are the same pages, so the same cuts give the same logits."""
    make_narrow(tmp_path, family, dtype)
    source, target = (load_pipeline(tmp_path, (0, 4)) for _ in range(2))
    recomputed = stage_logits(source, PROMPT, ANSWER[:6], chunk_tokens=64)
    copy_pages(source, target, range(8))
    hit = stage_logits(target, PROMPT, ANSWER[:6], chunk_tokens=64, first_position=128)
    assert torch.equal(recomputed, hit)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_pages_and_boundary_are_narrow(tmp_path: pathlib.Path, dtype: str) -> None:
    """Weights, activations and KV pages take two bytes a number (O26 d)."""
    make_narrow(tmp_path, "Llama", dtype)
    stage = load_stage(tmp_path, layers=range(1, 3))
    stage.allocate(num_pages=2, page_tokens=16)
    assert getattr(torch, dtype) == stage.description.dtype
    assert stage.description.kv_bytes_per_token == 2 * (2 * 2 * 16) * 2
    assert stage.page_layer_bytes() == stage.read_page(1, 0).nbytes == 16 * (2 * 2 * 16) * 2
    assert stage._owned_pool()._pool_LPHSD.dtype == getattr(torch, dtype)
    assert {weight.dtype for weight in _matrices(stage)} == {getattr(torch, dtype)}


def _matrices(stage: object) -> list[torch.Tensor]:
    layer = stage._decoder._layers[0]  # type: ignore[attr-defined]
    return [layer._projection._qkv_DN, layer._projection._o_ND, layer._mlp._down_ID]


def test_wide_weights_of_a_narrow_model(tmp_path: pathlib.Path) -> None:
    """A checkpoint stored wider than it declares is rounded once, when it is loaded."""
    for name in ("wide", "narrow"):
        make_tiny(tmp_path / name, "Llama")
        edit_config(tmp_path / name, dtype="bfloat16")
    store_as(tmp_path / "narrow", "bfloat16")
    wide, narrow = (
        stage_logits(load_pipeline(tmp_path / name, (0, 4)), PROMPT, ANSWER[:4])
        for name in ("wide", "narrow")
    )
    assert torch.equal(wide, narrow)


def test_a_router_is_never_rounded(tmp_path: pathlib.Path) -> None:
    """Which experts are chosen must not hang on the rounding of their scores."""
    make_narrow(tmp_path, "DeepseekV3", "bfloat16")
    stage = load_stage(tmp_path, layers=range(1, 2))
    router = stage._decoder._layers[0]._mlp._router  # type: ignore[union-attr]
    assert router._correction_E is not None
    assert not torch.equal(router._correction_E, router._correction_E.bfloat16().float())
    x_TD = torch.randn(50, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    (ids, weights), (wide_ids, wide_weights) = router(x_TD), router(x_TD.float())
    assert torch.equal(ids, wide_ids)
    assert torch.equal(weights, wide_weights)
