"""How near the kernels of experts and latents come to what the GPU can do, at DeepSeek's shapes.

Latent decode with each tiling that fits, grouped products with random choices of experts, and what
is done around them. Times are medians; between two calls the L2 cache is overwritten.
Run: python -m tests.bench.gpu_expert_kernels [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from pathlib import Path

import torch

from stage_worker.kernels import expert_slots, flash_prefill, reference, weight_blocks
from stage_worker.kernels.block_gemm import (
    ScaledExperts,
    ScaledSlots,
    contiguous_step,
    multiply_contiguous,
    multiply_fixed,
)
from stage_worker.kernels.latent_decode import LatentDecode, LatentTiling
from stage_worker.kernels.reference import GROUP_WIDTH
from stage_worker.kernels.reference_experts import ExpertSlots
from tests.bench import machine
from tests.bench.gpu_kernels import GPU, Table, big_cache, timed
from tests.expert_layouts import choices, empty_slots
from tests.kernel_inputs import CacheShape, Dice

HEADS, RANK, TURNED = 128, 512, 64
KEY_DIM, VALUE_DIM = 192, 128
TILINGS = tuple(
    LatentTiling(keys=keys, stages=stages, warps=8) for keys, stages in ((32, 2), (32, 3), (64, 2))
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A layer's experts."""

    name: str
    num_experts: int
    hidden: int
    inner: int


SHAPES = (
    Shape(name="Qwen3-30B-A3B", num_experts=128, hidden=2048, inner=768),
    Shape(name="DeepSeek-V3", num_experts=256, hidden=7168, inner=2048),
)
NUM_CHOSEN = 8


def latents(table: Table, dice: Dice) -> None:
    """Measure decode attention of one layer; bytes are those of the latents, read once."""
    for batch, num_keys in ((1, 131072), (1, 32768), (8, 32768), (32, 4096)):
        shape = CacheShape(
            num_kv_heads=1, head_dim=RANK + TURNED, page_tokens=128, num_keys=(num_keys,) * batch
        )
        cache, contexts = big_cache(dice, shape)
        q_BHd = dice.normal(batch, HEADS, RANK + TURNED)
        out_BHc = dice.poison(batch, HEADS, RANK)
        for tiling in TILINGS:
            attend = LatentDecode(GPU, tiling)
            call = functools.partial(attend, q_BHd, cache, contexts, out_BHc, 0.07)
            name = f"latents, {batch} x {num_keys} keys, k{tiling.keys} s{tiling.stages}"
            moved = 2 * batch * num_keys * (RANK + TURNED)
            table.add(name, timed(call), moved=moved)


def expanded(table: Table, dice: Dice) -> None:
    """Measure attention of a chunk to expanded latents, 16 heads at a time."""
    num_rows, num_heads = 4096, 16
    attend = flash_prefill.SequencesPrefill()
    for num_keys in (4096, 36864, 135168):
        q_THd, k_nHd = (dice.normal(rows, num_heads, KEY_DIM) for rows in (num_rows, num_keys))
        v_nHe = dice.normal(num_keys, num_heads, VALUE_DIM)
        begins = torch.tensor((0, num_rows), dtype=torch.int32, device=GPU)
        rows = reference.QueryRows(begins_B1=begins, longest=num_rows)
        contexts = reference.PagedContexts(
            page_table_Bp=begins[None],
            num_keys_B=torch.tensor([num_keys], dtype=torch.int32, device=GPU),
        )
        call = functools.partial(attend, q_THd, rows, k_nHd, v_nHe, contexts, 0.07)
        pairs = num_rows * (num_keys - num_rows / 2)
        computed = 2 * pairs * num_heads * (KEY_DIM + VALUE_DIM)
        table.add(f"expanded, {num_rows} on {num_keys}, 16 heads", timed(call), computed=computed)


def experts(table: Table, dice: Dice, shape: Shape) -> None:
    """Measure both grouped products of a layer, and what is around them."""
    gate_up = _weights(shape.num_experts, 2 * shape.inner, shape.hidden)
    down = _weights(shape.num_experts, shape.hidden, shape.inner)
    for num_rows in (4096, 32, 1):
        ids_Tk = choices(num_rows, NUM_CHOSEN, shape.num_experts, 0, skew=0).to(GPU)
        step, is_fixed = contiguous_step(), num_rows <= 128
        chosen_shape = (num_rows, NUM_CHOSEN)
        slots = empty_slots(GPU, chosen_shape, shape.num_experts, is_fixed=is_fixed, step=step)
        name, graph = f"{shape.name}, {num_rows} rows", num_rows <= 128
        add = functools.partial(_add, table, name, graph=graph)
        add("assign", functools.partial(expert_slots.assign, ids_Tk, slots))
        rows, inner = _slots(slots, shape.hidden), _slots(slots, shape.inner)
        x_TK = dice.normal(num_rows, shape.hidden)
        scaled = (slots, rows.values_SK, rows.scale_BgR)
        add("spread", functools.partial(expert_slots.spread, x_TK, *scaled))
        gate_up_SI, out_SD = (
            torch.empty(len(slots.owner_S), width, dtype=torch.bfloat16, device=GPU)
            for width in (2 * shape.inner, shape.hidden)
        )
        entries = num_rows * NUM_CHOSEN
        call = functools.partial(_multiply, rows, gate_up, slots, gate_up_SI)
        add("gate and up", call, 4 * entries * shape.inner * shape.hidden)
        scaled = (slots, inner.values_SK, inner.scale_BgR)
        add("silu * mul", functools.partial(expert_slots.gated_silu, gate_up_SI, *scaled))
        call = functools.partial(_multiply, inner, down, slots, out_SD)
        add("down", call, 2 * entries * shape.inner * shape.hidden)
        weights_Tk = dice.normal(*chosen_shape).float()
        combine = functools.partial(expert_slots.combine, out_SD, slots, weights_Tk, x_TK)
        add("combine", functools.partial(combine, adds=True))


def _add(
    table: Table, name: str, what: str, call: functools.partial[None], work: float = 0, *,
    graph: bool,
) -> None:  # fmt: skip
    table.add(f"{name}, {what}", timed(call, graph=graph), computed=work)


def _multiply(
    x: ScaledSlots, weight: ScaledExperts, slots: ExpertSlots, out_SN: torch.Tensor
) -> None:
    if slots.is_fixed:
        multiply_fixed(x, weight, slots.counts_E, out_SN)
    else:
        multiply_contiguous(x, weight, slots.owner_S, out_SN)


def _weights(num_experts: int, num_outputs: int, num_inputs: int) -> ScaledExperts:
    """Return random weights of experts."""
    values_ENK = torch.empty(
        num_experts, num_outputs, num_inputs, dtype=torch.float8_e4m3fn, device=GPU
    )
    scales = []
    for expert in range(num_experts):
        weight_NK = torch.randn(num_outputs, num_inputs, device=GPU) / num_inputs**0.5
        values_NK, scale_ng = weight_blocks.quantise_blocks(weight_NK)
        values_ENK[expert].copy_(values_NK)
        scales.append(scale_ng)
    return ScaledExperts(values_ENK=values_ENK, scale_Eng=torch.stack(scales))


def _slots(slots: ExpertSlots, width: int) -> ScaledSlots:
    """Return memory for eight-bit slots, zeros at first."""
    num_blocks, block_slots = slots.block_shape
    values = torch.zeros(len(slots.owner_S), width, dtype=torch.uint8, device=GPU)
    scale_BgR = torch.zeros(num_blocks, width // GROUP_WIDTH, block_slots, device=GPU)
    return ScaledSlots(values_SK=values.view(torch.float8_e4m3fn), scale_BgR=scale_BgR)


def main() -> None:
    """Print the tables and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_expert_kernels")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table, dice = Table(), Dice(GPU)
    print(torch.cuda.get_device_name(GPU), "torch", torch.__version__, machine.describe())
    latents(table, dice)
    expanded(table, dice)
    for shape in SHAPES:
        experts(table, dice, shape)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main()
