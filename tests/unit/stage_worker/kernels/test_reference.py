"""The definitions of the kernels, against torch's own functions or the model's CPU path."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from stage_worker.kernels import reference, weight_blocks
from stage_worker.kernels.reference import PagedKeysValues, QueryRows
from stage_worker.norm import RmsNorm
from stage_worker.rope import Rope, heads, rotate
from stage_worker.rope_config import RopeConfig
from tests.kernel_inputs import CacheShape, Dice, distance, paged_cache, slots_of, wide

CPU = torch.device("cpu")
SHAPE = CacheShape(num_kv_heads=2, head_dim=16, page_tokens=4, num_keys=(1, 4, 11))


def expanded(pages_PNKd: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a sequence for every query head, float64 [H, n, d]."""
    return wide(pages_PNKd).flatten(0, 1)[slots].repeat_interleave(2, dim=1).transpose(0, 1)


def test_decode_is_attention_to_all_keys_of_a_table() -> None:
    """Each sequence reads its own pages, up to its own length."""
    dice = Dice(CPU)
    cache, contexts = paged_cache(dice, SHAPE)
    q_BHd = wide(dice.normal(3, 4, 16))
    out_BHd = torch.full_like(q_BHd, float("nan"))
    reference.paged_decode(q_BHd, cache, contexts, out_BHd, 0.25)
    for row, num_keys in enumerate(SHAPE.num_keys):
        slots = slots_of(contexts.page_table_Bp[row], SHAPE.page_tokens, num_keys)
        k_Hnd, v_Hnd = expanded(cache.k_PNKd, slots), expanded(cache.v_PNKd, slots)
        right = functional.scaled_dot_product_attention(q_BHd[row, :, None], k_Hnd, v_Hnd)
        torch.testing.assert_close(out_BHd[row], right[:, 0])


def test_the_last_row_of_a_prefill_is_a_decode_step() -> None:
    """Prefill's mask is bottom-right: the last row sees everything, the one before one key less."""
    dice = Dice(CPU)
    cache, contexts = paged_cache(dice, SHAPE)
    q_THd = wide(dice.normal(1 + 2 + 5, 4, 16))
    begins = torch.tensor([0, 1, 3, 8], dtype=torch.int32)
    rows = QueryRows(begins_B1=begins, longest=5)
    out_THd = reference.paged_prefill(q_THd, rows, cache, contexts, 0.25)
    for back in (0, 1):
        shorter = reference.PagedContexts(
            page_table_Bp=contexts.page_table_Bp[1:], num_keys_B=contexts.num_keys_B[1:] - back
        )
        at = begins[2:].long() - 1 - back
        right_BHd = torch.empty_like(q_THd[at])
        reference.paged_decode(q_THd[at], cache, shorter, right_BHd, 0.25)
        torch.testing.assert_close(out_THd[at], right_BHd)


def test_add_norm_is_the_models_norm_of_the_sum() -> None:
    """On the CPU it may stand in for the model's own norm."""
    generator = torch.Generator().manual_seed(0)
    delta_TD, hidden_TD = (torch.randn(3, 24, generator=generator) for _ in range(2))
    weight_D = torch.randn(24, generator=generator)
    right_sum_TD = hidden_TD + delta_TD
    right_TD, out_TD = torch.empty_like(hidden_TD), torch.empty_like(hidden_TD)
    RmsNorm(weight_D, 1e-5)(right_sum_TD, right_TD)
    reference.add_norm(delta_TD, hidden_TD, weight_D, 1e-5, out_TD)
    torch.testing.assert_close(hidden_TD, right_sum_TD)
    torch.testing.assert_close(out_TD, right_TD)


def test_rope_store_turns_as_the_model_does() -> None:
    """Queries leave and keys are cached as the model's rope turns them; values are untouched."""
    generator = torch.Generator().manual_seed(0)
    qkv_TJd = torch.randn(3, 4 + 2 + 2, 8, generator=generator)
    rope = Rope(RopeConfig(theta=10000.0), 8)
    rotation = rope.rotation(torch.tensor([5, 6, 7]))
    turned_TJd = torch.empty(3, 6, 8)
    rotate(heads(qkv_TJd[:, :6]), rotation, heads(turned_TJd))
    angles = reference.Angles(cos_Th=rotation.cos_T1D[:, 0, :4], sin_Th=rotation.sin_T1h[:, 0])
    nan_SKd = torch.full((2, 4, 2, 8), float("nan"))
    cache = PagedKeysValues(k_PNKd=nan_SKd.clone(), v_PNKd=nan_SKd.clone())
    q_THd = torch.empty(3, 4, 8)
    slots_T = torch.tensor([6, -1, 1])
    reference.rope_store(qkv_TJd, angles, None, cache, slots_T, q_THd)
    torch.testing.assert_close(q_THd, turned_TJd[:, :4])
    kept = torch.tensor([0, 2])
    torch.testing.assert_close(cache.k_PNKd.flatten(0, 1)[[6, 1]], turned_TJd[kept, 4:])
    assert torch.equal(cache.v_PNKd.flatten(0, 1)[[6, 1]], qkv_TJd[kept, 6:])
    assert 2 * 2 * 8 == int(cache.k_PNKd.isfinite().sum())


def test_gated_silu() -> None:
    """The first half gates the second."""
    gate_up_TI = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    out_TI = torch.empty(3, 5)
    reference.gated_silu(gate_up_TI, out_TI)
    torch.testing.assert_close(out_TI, functional.silu(gate_up_TI[:, :5]) * gate_up_TI[:, 5:])


def test_quantised_rows_stay_near() -> None:
    """Scales differ by 10^6 between groups; each group keeps FP8's relative precision."""
    x_TD = torch.randn(4, 384, generator=torch.Generator().manual_seed(0))
    x_TD[:, 128:256] *= 1e6
    x_TD[2] = 0
    values_TD, scale_Tg = torch.empty(4, 384, dtype=torch.float8_e4m3fn), torch.empty(4, 3)
    reference.quantise(x_TD, values_TD, scale_Tg)
    found_TD = reference.dequantise(values_TD, scale_Tg)
    assert bool((found_TD[2] == 0).all())
    for group in range(3):
        columns = slice(128 * group, 128 * group + 128)
        assert distance(found_TD[:, columns], x_TD[:, columns]) < 0.04


@pytest.mark.parametrize("shape", [(128, 128), (256, 384)])
def test_quantised_weights_stay_near(shape: tuple[int, int]) -> None:
    """A block's largest number sets its scale, and no number passes the type's limit."""
    weight_NK = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    values_NK, scale_ng = weight_blocks.quantise_blocks(weight_NK)
    assert (shape[0] // 128, shape[1] // 128) == scale_ng.shape
    assert bool(values_NK.float().isfinite().all())
    assert distance(weight_blocks.dequantise_blocks(values_NK, scale_ng), weight_NK) < 0.04
