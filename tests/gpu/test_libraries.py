"""Kernels of other projects behind our interface: the right arguments, layouts and scales."""

from __future__ import annotations

import importlib
import types

import pytest
import torch

from stage_worker.kernels import availability, reference, weight_blocks
from stage_worker.kernels.availability import BLOCK_GEMM, FLASH_PREFILL, Needs
from tests import defined_block_gemm
from tests.expert_layouts import choices, empty_slots
from tests.kernel_inputs import CacheShape, Dice, distance, paged_cache, wide

pytestmark = [
    pytest.mark.gpu,
    # FlashAttention-4 b36 and quack 0.6 use old names of cutlass-dsl 4.8, and it says so.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Argument aux_data:UserWarning"),
]


def load(name: str, needs: Needs, device: torch.device) -> types.ModuleType:
    """Import a module of the kernels, or skip the test and say what is missing."""
    reason = availability.why_not(needs, device)
    if reason is not None:
        pytest.skip(reason)
    return importlib.import_module(f"stage_worker.kernels.{name}")


@pytest.mark.parametrize("page_tokens", [64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(8, 2, 128), (9, 3, 64)])
def test_prefill_sees_prefix_and_chunk(
    gpu: torch.device, page_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    """Several chunks behind prefixes of other lengths, and one without: a bottom-right mask."""
    flash_prefill = load("flash_prefill", FLASH_PREFILL, gpu)
    dice = Dice(gpu)
    row_counts, num_keys = (130, 1, 64, 200), (130, 300, 65, 1000)
    shape = CacheShape(
        num_kv_heads=num_kv_heads, head_dim=head_dim, page_tokens=page_tokens, num_keys=num_keys
    )
    cache, contexts = paged_cache(dice, shape)
    for pages in (cache.k_PNKd, cache.v_PNKd):
        pages.nan_to_num_(1e4)
    contexts.page_table_Bp.clamp_(max=len(cache.k_PNKd) - 1)
    q_THd = dice.normal(sum(row_counts), num_heads, head_dim)
    begins = torch.tensor((0, *row_counts), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    rows = reference.QueryRows(begins_B1=begins.to(gpu), longest=max(row_counts))
    out_THd = flash_prefill.paged_prefill(q_THd, rows, cache, contexts, head_dim**-0.5)
    right_THd = reference.paged_prefill(wide(q_THd), rows, cache, contexts, head_dim**-0.5)
    assert distance(out_THd, right_THd) < 0.01


@pytest.mark.parametrize("num_heads", [4, 19])
def test_prefill_without_pages(gpu: torch.device, num_heads: int) -> None:
    """Expanded latents: keys of 192 and values of 128, of several sequences behind one another."""
    flash_prefill = load("flash_prefill", FLASH_PREFILL, gpu)
    dice = Dice(gpu)
    row_counts, num_keys = (130, 1, 64, 200), (130, 300, 65, 1000)
    q_THd = dice.normal(sum(row_counts), num_heads, 192)
    k_nHd, v_nHe = (dice.normal(sum(num_keys), num_heads, width) for width in (192, 128))
    begins = torch.tensor((0, *row_counts), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    rows = reference.QueryRows(begins_B1=begins.to(gpu), longest=max(row_counts))
    contexts = reference.PagedContexts(
        page_table_Bp=torch.zeros(4, 1, dtype=torch.int32, device=gpu),
        num_keys_B=torch.tensor(num_keys, dtype=torch.int32, device=gpu),
    )
    attend = flash_prefill.SequencesPrefill()
    right_THe = reference.sequences_prefill(
        wide(q_THd), rows, k_nHd, v_nHe, contexts.num_keys_B, 0.1
    )
    for _ in range(2):
        out_THe = attend(q_THd, rows, k_nHd, v_nHe, contexts, 0.1)
        assert distance(out_THe, right_THe) < 0.01


@pytest.mark.parametrize("num_rows", [1, 7, 130])
def test_block_scaled_product(gpu: torch.device, num_rows: int) -> None:
    """Our scales, in our layout, mean to DeepGEMM what they mean to us."""
    block_gemm = load("block_gemm", BLOCK_GEMM, gpu)
    quantise = load("quantise", availability.TRITON, gpu)
    dice = Dice(gpu)
    x_TK, weight_NK = dice.normal(num_rows, 512), dice.normal(384, 512)
    values_TK = torch.empty_like(x_TK, dtype=torch.float8_e4m3fn)
    scale_Tg = quantise.empty_scales(num_rows, 512, gpu)
    quantise.quantise(x_TK, values_TK, scale_Tg)
    values_NK, scale_ng = weight_blocks.quantise_blocks(weight_NK)
    out_TN = dice.poison(num_rows, 384)
    block_gemm.multiply(
        block_gemm.ScaledRows(values_TK=values_TK, scale_Tg=scale_Tg),
        block_gemm.ScaledBlocks(values_NK=values_NK, scale_ng=scale_ng),
        out_TN,
    )
    weight_NK = weight_blocks.dequantise_blocks(values_NK, scale_ng)
    right_TN = reference.dequantise(values_TK, scale_Tg).double() @ weight_NK.double().T
    assert distance(out_TN, right_TN) < 0.01


@pytest.mark.parametrize("num_rows", [1, 32, 700])
@pytest.mark.parametrize("is_fixed", [True, False])
def test_grouped_product(gpu: torch.device, num_rows: int, is_fixed: bool) -> None:
    """Each slot is multiplied with its owner's weight, whatever memory holds where there is no row.

    Some experts have no row, and one has more than all others.
    """
    block_gemm = load("block_gemm", BLOCK_GEMM, gpu)
    kernels = load("expert_slots", availability.TRITON, gpu)
    dice, num_experts, num_chosen, width, outputs = Dice(gpu), 40, 4, 384, 256
    weights = [
        weight_blocks.quantise_blocks(dice.normal(outputs, width)) for _ in range(num_experts)
    ]
    experts = block_gemm.ScaledExperts(
        values_ENK=torch.stack([values for values, _ in weights]),
        scale_Eng=torch.stack([scale for _, scale in weights]),
    )
    step = block_gemm.contiguous_step()
    slots = empty_slots(gpu, (num_rows, num_chosen), num_experts, is_fixed=is_fixed, step=step)
    ids_Tk = choices(num_rows, num_chosen, num_experts - 3, 0).to(gpu)
    kernels.assign(ids_Tk, slots)
    num_slots, (num_blocks, block_slots) = len(slots.owner_S), slots.block_shape
    nothing = torch.full((num_slots, width), 127, dtype=torch.uint8, device=gpu)
    rows = block_gemm.ScaledSlots(
        values_SK=nothing.view(torch.float8_e4m3fn),
        scale_BgR=torch.full((num_blocks, width // 128, block_slots), torch.nan, device=gpu),
    )
    kernels.spread(dice.normal(num_rows, width), slots, rows.values_SK, rows.scale_BgR)
    out_SN = dice.poison(num_slots, outputs)
    if is_fixed:
        block_gemm.multiply_fixed(rows, experts, slots.counts_E, out_SN)
    else:
        block_gemm.multiply_contiguous(rows, experts, slots.owner_S, out_SN)
    right_SN = torch.empty_like(out_SN)
    if is_fixed:
        defined_block_gemm.multiply_fixed(rows, experts, slots.counts_E, right_SN)
    else:
        defined_block_gemm.multiply_contiguous(rows, experts, slots.owner_S, right_SN)
    used_n = slots.owner_S >= 0
    assert distance(out_SN[used_n], right_SN[used_n]) < 0.01
