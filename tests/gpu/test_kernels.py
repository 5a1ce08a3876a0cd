"""Triton kernels against their definition in float64, on random data and poisoned outputs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from stage_worker.kernels import reference
from stage_worker.kernels.reference import LatentParts, PagedKeysValues
from tests.kernel_inputs import (
    CacheShape,
    Dice,
    angles,
    distance,
    head_norms,
    paged_cache,
    wide,
)

pytestmark = pytest.mark.gpu

BF16_ROUNDING = 3e-3
"""One rounding to bfloat16 moves a random number by 1.7e-3 on average."""


@pytest.fixture
def dice(triton_device: torch.device) -> Dice:
    """Return the source of a test's inputs."""
    return Dice(triton_device)


@pytest.mark.parametrize("page_tokens", [16, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 2), (9, 3), (4, 4), (16, 1)])
def test_decode_attends_to_scattered_pages(
    dice: Dice, page_tokens: int, head_dim: int, num_heads: int, num_kv_heads: int
) -> None:
    """Every border of a page, a sequence of one key, and nothing read behind the last key."""
    paged_decode = pytest.importorskip("stage_worker.kernels.paged_decode")
    shape = CacheShape(
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_tokens=page_tokens,
        num_keys=(1, page_tokens - 1, page_tokens, page_tokens + 1, 5 * page_tokens + 3),
    )
    cache, contexts = paged_cache(dice, shape)
    q_BHd = dice.normal(len(shape.num_keys), num_heads, head_dim)
    out_BHd, right_BHd = dice.poison(*q_BHd.shape), wide(q_BHd)
    attend = paged_decode.PagedDecode(dice.device)
    for _ in range(2):
        attend(q_BHd, cache, contexts, out_BHd, head_dim**-0.5)
    reference.paged_decode(wide(q_BHd), cache, contexts, right_BHd, head_dim**-0.5)
    assert distance(out_BHd, right_BHd) < 2 * BF16_ROUNDING


def test_decode_of_growing_batches_uses_one_object(dice: Dice) -> None:
    """Scratch memory grows with the batch and must not keep what an earlier one left."""
    paged_decode = pytest.importorskip("stage_worker.kernels.paged_decode")
    attend = paged_decode.PagedDecode(dice.device)
    for batch in (1, 7, 3):
        shape = CacheShape(num_kv_heads=2, head_dim=64, page_tokens=64, num_keys=(130,) * batch)
        cache, contexts = paged_cache(dice, shape)
        q_BHd = dice.normal(batch, 8, 64)
        out_BHd, right_BHd = dice.poison(*q_BHd.shape), wide(q_BHd)
        attend(q_BHd, cache, contexts, out_BHd, 0.125)
        reference.paged_decode(wide(q_BHd), cache, contexts, right_BHd, 0.125)
        assert distance(out_BHd, right_BHd) < 2 * BF16_ROUNDING


def test_a_captured_decode_follows_its_contexts(gpu: torch.device) -> None:
    """A decode step is replayed as one graph while contexts grow and pages are added."""
    paged_decode = pytest.importorskip("stage_worker.kernels.paged_decode")
    dice = Dice(gpu)
    shape = CacheShape(num_kv_heads=2, head_dim=128, page_tokens=64, num_keys=(3000, 70))
    cache, contexts = paged_cache(dice, shape)
    q_BHd = dice.normal(2, 8, 128)
    out_BHd = dice.poison(*q_BHd.shape)
    attend = paged_decode.PagedDecode(gpu)
    attend(q_BHd, cache, contexts, out_BHd, 0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(q_BHd, cache, contexts, out_BHd, 0.1)
    for num_keys in ((3000, 70), (1, 64), (65, 1), (2999, 33)):
        contexts.num_keys_B.copy_(torch.tensor(num_keys, dtype=torch.int32))
        q_BHd.copy_(dice.normal(2, 8, 128))
        right_BHd = wide(out_BHd.fill_(float("nan")))
        graph.replay()
        reference.paged_decode(wide(q_BHd), cache, contexts, right_BHd, 0.1)
        assert distance(out_BHd, right_BHd) < 2 * BF16_ROUNDING


@pytest.mark.parametrize("page_tokens", [16, 64])
@pytest.mark.parametrize("num_heads", [4, 64, 80])
@pytest.mark.parametrize(("rank", "turned"), [(32, 16), (128, 64)])
def test_decode_attends_to_latents(
    dice: Dice, page_tokens: int, num_heads: int, rank: int, turned: int
) -> None:
    """All heads see one latent: as a key whole, as a value without its turned part."""
    check_latent_decode(dice, page_tokens, num_heads, (rank, turned))


@pytest.mark.parametrize("num_heads", [16, 128])
def test_decode_attends_to_latents_of_deepseek(gpu: torch.device, num_heads: int) -> None:
    """The widths of real models fit into a GPU's shared memory."""
    check_latent_decode(Dice(gpu), 128, num_heads, (512, 64))


def check_latent_decode(
    dice: Dice, page_tokens: int, num_heads: int, widths: tuple[int, int]
) -> None:
    """Compare with the definition: every border of a page, and nothing behind the last key."""
    latent_decode = pytest.importorskip("stage_worker.kernels.latent_decode")
    rank, turned = widths
    shape = CacheShape(
        num_kv_heads=1,
        head_dim=rank + turned,
        page_tokens=page_tokens,
        num_keys=(1, page_tokens - 1, page_tokens, page_tokens + 1, 5 * page_tokens + 3),
    )
    cache, contexts = paged_cache(dice, shape)
    q_BHd = dice.normal(len(shape.num_keys), num_heads, rank + turned)
    out_BHc = dice.poison(len(shape.num_keys), num_heads, rank)
    right_BHc = wide(out_BHc)
    attend = latent_decode.LatentDecode(dice.device)
    for _ in range(2):
        attend(q_BHd, cache, contexts, out_BHc, 0.1)
    latents = PagedKeysValues(k_PNKd=cache.k_PNKd, v_PNKd=cache.k_PNKd[..., :rank])
    reference.paged_decode(wide(q_BHd), latents, contexts, right_BHc, 0.1)
    assert distance(out_BHc, right_BHc) < 2 * BF16_ROUNDING


@pytest.mark.parametrize("width", [128, 576, 4096, 5120])
@pytest.mark.parametrize("has_delta", [True, False])
def test_add_norm(dice: Dice, width: int, has_delta: bool) -> None:
    """The residual stream is the rounded sum, and the norm is the norm of that."""
    add_norm = pytest.importorskip("stage_worker.kernels.add_norm")
    delta_TD = dice.normal(5, width) if has_delta else None
    hidden_TD, weight_D = dice.normal(5, width), dice.normal(width)
    kept_TD = hidden_TD.clone()
    if delta_TD is not None:
        kept_TD += delta_TD
    out_TD, right_TD = dice.poison(5, width), wide(kept_TD)
    add_norm.add_norm(delta_TD, hidden_TD, weight_D, 1e-6, out_TD)
    reference.add_norm(None, wide(kept_TD), weight_D, 1e-6, right_TD)
    assert torch.equal(kept_TD, hidden_TD)
    assert distance(out_TD, right_TD) < BF16_ROUNDING


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 2), (9, 3)])
def test_rope_store(
    dice: Dice, head_dim: int, has_norms: bool, num_heads: int, num_kv_heads: int
) -> None:
    """Queries, keys and values end where attention finds them, and nothing else is touched."""
    rope_store = pytest.importorskip("stage_worker.kernels.rope_store")
    qkv_TJd = dice.normal(6, num_heads + 2 * num_kv_heads, head_dim)
    turn, norms = angles(dice, 6, head_dim), head_norms(dice, head_dim) if has_norms else None
    slots_T = torch.tensor([17, 3, -1, 40, 0, 63], device=dice.device)
    shape = (4, 16, num_kv_heads, head_dim)
    cache = PagedKeysValues(k_PNKd=dice.poison(*shape), v_PNKd=dice.poison(*shape))
    right = PagedKeysValues(k_PNKd=wide(cache.k_PNKd), v_PNKd=wide(cache.v_PNKd))
    q_THd = dice.poison(6, num_heads, head_dim)
    right_q_THd = wide(q_THd)
    rope_store.rope_store(qkv_TJd, turn, norms, cache, slots_T, q_THd)
    reference.rope_store(wide(qkv_TJd), turn, norms, right, slots_T, right_q_THd)
    written = slots_T[slots_T >= 0]
    assert distance(q_THd, right_q_THd) < BF16_ROUNDING
    for field in dataclasses.fields(cache):
        found_SKd = getattr(cache, field.name).flatten(0, 1)
        right_SKd = getattr(right, field.name).flatten(0, 1)
        assert distance(found_SKd[written], right_SKd[written]) < BF16_ROUNDING
        assert torch.equal(found_SKd.isnan(), right_SKd.isnan())


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("rank", "turned"), [(512, 64), (48, 16)])
def test_latent_store(dice: Dice, rank: int, turned: int, interleaved: bool) -> None:
    """Latents and keys end in their slots, from rows that are part of wider ones."""
    latent_store = pytest.importorskip("stage_worker.kernels.latent_store")
    projected_TN = dice.normal(6, rank + turned + 40)
    parts = LatentParts(norm_R=dice.normal(rank), eps=1e-6, interleaved=interleaved)
    slots_T = torch.tensor([17, 3, -1, 40, 0, 63], device=dice.device)
    k_PNKd = dice.poison(4, 16, 1, rank + turned)
    cache = PagedKeysValues(k_PNKd=k_PNKd, v_PNKd=k_PNKd)
    right = PagedKeysValues(k_PNKd=wide(k_PNKd), v_PNKd=wide(k_PNKd))
    turn = angles(dice, 6, turned)
    latent_store.latent_store(projected_TN[:, 40:], turn, parts, cache, slots_T)
    reference.latent_store(wide(projected_TN)[:, 40:], turn, parts, right, slots_T)
    written = slots_T[slots_T >= 0]
    found_Sd, right_Sd = (pages.k_PNKd.flatten(0, 2) for pages in (cache, right))
    assert distance(found_Sd[written], right_Sd[written]) < BF16_ROUNDING
    assert torch.equal(found_Sd.isnan(), right_Sd.isnan())


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("num_heads", "plain", "turned"), [(128, 128, 64), (5, 24, 16)])
def test_turn_queries(
    dice: Dice, num_heads: int, plain: int, turned: int, interleaved: bool
) -> None:
    """All heads of a row are turned by one angle, and their plain part is left alone."""
    latent_store = pytest.importorskip("stage_worker.kernels.latent_store")
    width = num_heads * (plain + turned)
    q_TN = dice.normal(3, width + 8)[:, :width]
    parts = LatentParts(norm_R=dice.normal(1), eps=0.0, interleaved=interleaved)
    q_THq, turn = dice.poison(3, num_heads, plain + turned), angles(dice, 3, turned)
    right_THq = wide(q_THq)
    latent_store.turn_queries(q_TN, turn, parts, q_THq)
    reference.turn_queries(wide(q_TN), turn, parts, right_THq)
    assert distance(q_THq, right_THq) < BF16_ROUNDING
    assert torch.equal(q_THq[..., :plain].flatten(), q_TN.view(q_THq.shape)[..., :plain].flatten())


@pytest.mark.parametrize("width", [64, 1536, 5000])
def test_gated_silu(dice: Dice, width: int) -> None:
    """Any width, in one pass."""
    gated_silu = pytest.importorskip("stage_worker.kernels.gated_silu")
    gate_up_TI = dice.normal(5, 2 * width)
    out_TI = dice.poison(5, width)
    right_TI = wide(out_TI)
    gated_silu.gated_silu(gate_up_TI, out_TI)
    reference.gated_silu(wide(gate_up_TI), right_TI)
    assert distance(out_TI, right_TI) < BF16_ROUNDING


@pytest.mark.parametrize("width", [128, 1536, 4096])
def test_quantise(dice: Dice, width: int) -> None:
    """Scales are those of the definition, and values at most one step of FP8 away."""
    quantise = pytest.importorskip("stage_worker.kernels.quantise")
    if dice.device.type == "cpu":
        pytest.skip("Triton's interpreter cuts to FP8 where a GPU rounds")
    x_TD = dice.normal(7, width) * 10
    x_TD[3] = 0
    values_TD = torch.full((7, width), 127, dtype=torch.uint8, device=dice.device)
    values_TD = values_TD.view(torch.float8_e4m3fn)
    scale_Tg = quantise.empty_scales(7, width, dice.device).fill_(float("nan"))
    right_TD, right_Tg = torch.empty_like(values_TD), torch.empty_like(scale_Tg)
    quantise.quantise(x_TD, values_TD, scale_Tg)
    reference.quantise(x_TD, right_TD, right_Tg)
    torch.testing.assert_close(scale_Tg, right_Tg)
    found, right = (
        reference.dequantise(values_TD, scale_Tg),
        reference.dequantise(right_TD, right_Tg),
    )
    assert distance(found, x_TD) < 0.04
    assert distance(found, right) < 0.01
    assert scale_Tg.stride() == (1, 8)
