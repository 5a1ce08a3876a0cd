"""How near each kernel comes to what the GPU can do: TB/s or TFLOP/s on random data.

The ceilings are measured first: a device-to-device copy and a bf16 matrix product. Times are
medians; between two calls the L2 cache is overwritten.
Run: python -m tests.bench.gpu_kernels [--json FILE] [--tilings] [PART ...]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from stage_worker.kernels import availability, reference, weight_blocks
from tests.bench import machine
from tests.kernel_inputs import CacheShape, Dice, angles, distance, head_norms

GPU = torch.device("cuda", 0)
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER = 32, 8, 128, 4096, 12288
"""Of Qwen3-8B."""
ROWS = 8192
FEW_ROWS = 32


class Table:
    """Collects and prints what was measured."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, name: str, ms: float, *, moved: float = 0, computed: float = 0) -> None:
        """Add a time with the bytes that had to move or the operations that had to be done."""
        row: dict[str, object] = {"name": name, "us": ms * 1e3}
        rate = ""
        if moved:
            row["tb_per_s"] = moved / ms / 1e9
            rate = f"{moved / ms / 1e9:8.2f} TB/s"
        if computed:
            row["tflop_per_s"] = computed / ms / 1e9
            rate = f"{computed / ms / 1e9:8.0f} TFLOP/s"
        self.rows.append(row)
        print(f"{name:58}{ms * 1e3:10.1f} us {rate}", flush=True)


def timed(call: Callable[[], object], *, graph: bool = False) -> float:
    """Return the median time of a call in ms; as a graph without the host's launches."""
    testing = importlib.import_module("triton.testing")
    if graph:
        return float(testing.do_bench_cudagraph(call, rep=20, return_mode="median"))
    return float(testing.do_bench(call, warmup=25, rep=100, return_mode="median"))


def ceilings(table: Table, dice: Dice) -> None:
    """Measure what the GPU can do."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device=GPU).random_()
    target = torch.empty_like(source)
    ms = timed(lambda: target.copy_(source))
    table.add("copy, 4 GiB, read + written", ms, moved=2 * source.numel())
    x, weight = dice.normal(ROWS, 8192), dice.normal(8192, 8192)
    table.add("bf16 product, 8192^3", timed(lambda: x @ weight), computed=2 * ROWS * 8192**2)


def decode(table: Table, dice: Dice, *, tilings: bool) -> None:
    """Measure decode attention of one layer."""
    paged_decode = importlib.import_module("stage_worker.kernels.paged_decode")
    candidates = [paged_decode.Tiling()]
    if tilings:
        candidates = [
            paged_decode.Tiling(keys=keys, stages=stages, warps=warps, programs_per_sm=programs)
            for keys, stages, warps, programs in itertools.product(
                (64, 128), (2, 3, 4), (4, 8), (1, 2, 4)
            )
        ]
    cases = [(1, 131072, 128), (1, 131072, 64), (1, 32768, 128), (8, 131072, 128), (32, 4096, 128)]
    for (batch, num_keys, page), tiling in itertools.product(cases, candidates):
        if tilings and (tiling.keys > page or (tiling.keys, tiling.stages) == (128, 4)):
            continue
        shape = CacheShape(
            num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, page_tokens=page, num_keys=(num_keys,) * batch
        )
        cache, contexts = big_cache(dice, shape)
        q_BHd = dice.normal(batch, HEADS, HEAD_DIM)
        out_BHd = dice.poison(*q_BHd.shape)
        attend = paged_decode.PagedDecode(GPU, tiling)

        def call() -> None:
            attend(q_BHd, cache, contexts, out_BHd, HEAD_DIM**-0.5)  # noqa: B023

        name = f"decode, {batch} x {num_keys} keys, page {page}"
        if tilings:
            name += f" k{tiling.keys} s{tiling.stages} w{tiling.warps} p{tiling.programs_per_sm}"
        moved = 2 * 2 * batch * num_keys * KV_HEADS * HEAD_DIM
        table.add(name, timed(call), moved=moved)


def big_cache(
    dice: Dice, shape: CacheShape
) -> tuple[reference.PagedKeysValues, reference.PagedContexts]:
    """Return a full cache drawn on the GPU, with scattered pages; one is kept for the next call."""
    if shape not in _KEPT:
        _KEPT.clear()
        batch, num_pages = len(shape.num_keys), sum(shape.num_keys) // shape.page_tokens
        pages = (num_pages, shape.page_tokens, shape.num_kv_heads, shape.head_dim)
        k_PNKd, v_PNKd = (torch.randn(*pages, device=GPU, dtype=torch.bfloat16) for _ in range(2))
        table_Bp = dice.permutation(num_pages).to(torch.int32).view(batch, -1)
        num_keys_B = torch.tensor(shape.num_keys, dtype=torch.int32, device=GPU)
        _KEPT[shape] = (
            reference.PagedKeysValues(k_PNKd=k_PNKd, v_PNKd=v_PNKd),
            reference.PagedContexts(page_table_Bp=table_Bp, num_keys_B=num_keys_B),
        )
    return _KEPT[shape]


_KEPT: dict[CacheShape, tuple[reference.PagedKeysValues, reference.PagedContexts]] = {}


def elementwise(table: Table, dice: Dice) -> None:
    """Measure what is bound by memory, for a chunk and for a decode step."""
    names = ("add_norm", "rope_store", "gated_silu", "quantise")
    add_norm, rope_store, gated_silu, quantise = (
        importlib.import_module(f"stage_worker.kernels.{name}") for name in names
    )
    for num_rows in (ROWS, FEW_ROWS):
        graph = num_rows == FEW_ROWS

        def add(name: str, call: Callable[[], object], moved: int) -> None:
            table.add(f"{name}, {num_rows} rows", timed(call, graph=graph), moved=moved)  # noqa: B023

        delta, hidden, out = (dice.normal(num_rows, HIDDEN) for _ in range(3))
        weight = dice.normal(HIDDEN)
        moved = 8 * num_rows * HIDDEN
        add("add + norm", lambda: add_norm.add_norm(delta, hidden, weight, 1e-6, out), moved)  # noqa: B023
        add("  torch", lambda: reference.add_norm(delta, hidden, weight, 1e-6, out), moved)  # noqa: B023
        qkv = dice.normal(num_rows, HEADS + 2 * KV_HEADS, HEAD_DIM)
        turn, norms = angles(dice, num_rows, HEAD_DIM), head_norms(dice, HEAD_DIM)
        q = dice.poison(num_rows, HEADS, HEAD_DIM)
        pages = (max(num_rows // 128, 1), 128, KV_HEADS, HEAD_DIM)
        cache = reference.PagedKeysValues(k_PNKd=dice.poison(*pages), v_PNKd=dice.poison(*pages))
        slots = dice.permutation(num_rows)
        arguments = (qkv, turn, norms, cache, slots, q)
        moved = 4 * qkv.numel()
        add("head norms + rope + store", lambda: rope_store.rope_store(*arguments), moved)  # noqa: B023
        gate_up, inner = dice.normal(num_rows, 2 * INNER), dice.poison(num_rows, INNER)
        moved = 6 * inner.numel()
        add("silu * mul", lambda: gated_silu.gated_silu(gate_up, inner), moved)  # noqa: B023
        add("  torch", lambda: reference.gated_silu(gate_up, inner), moved)  # noqa: B023
        for x in (hidden, inner):
            values = torch.empty_like(x, dtype=torch.float8_e4m3fn)
            scales = quantise.empty_scales(*x.shape, GPU)
            moved = 3 * x.numel() + 4 * scales.numel()
            add(f"quantise {x.shape[1]}", lambda: quantise.quantise(x, values, scales), moved)  # noqa: B023


def products(table: Table, dice: Dice) -> None:
    """Measure FP8 products beside bf16 ones, at the shapes of Qwen3-8B's layers."""
    block_gemm = importlib.import_module("stage_worker.kernels.block_gemm")
    quantise = importlib.import_module("stage_worker.kernels.quantise")
    widths = ((HIDDEN, 6144), (HIDDEN, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN))
    for num_rows, (inner, outer) in itertools.product((ROWS, 4096, FEW_ROWS), widths):
        x, weight = dice.normal(num_rows, inner), dice.normal(outer, inner)
        out, right = dice.poison(num_rows, outer), x @ weight.T
        values = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        scales = quantise.empty_scales(num_rows, inner, GPU)
        quantise.quantise(x, values, scales)
        rows = block_gemm.ScaledRows(values_TK=values, scale_Tg=scales)
        blocks = block_gemm.ScaledBlocks(
            **dict(
                zip(("values_NK", "scale_ng"), weight_blocks.quantise_blocks(weight), strict=True)
            )
        )
        computed = 2 * num_rows * inner * outer
        name = f"{num_rows} x {inner} x {outer}"
        ms = timed(lambda: block_gemm.multiply(rows, blocks, out))  # noqa: B023
        table.add(f"FP8 {name}, error {distance(out, right):.3f}", ms, computed=computed)
        ms = timed(lambda: torch.mm(x, weight.T, out=right))  # noqa: B023
        table.add(f"bf16 {name}", ms, computed=computed)


def prefill(table: Table, dice: Dice) -> None:
    """Measure prefill attention of one layer."""
    flash_prefill = importlib.import_module("stage_worker.kernels.flash_prefill")
    for num_rows, num_keys, page in ((4096, 4096, 128), (4096, 131072, 128), (4096, 131072, 64),
                                     (8192, 65536, 128)):  # fmt: skip
        shape = CacheShape(
            num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, page_tokens=page, num_keys=(num_keys,)
        )
        cache, contexts = big_cache(dice, shape)
        q_THd = dice.normal(num_rows, HEADS, HEAD_DIM)
        begins = torch.tensor((0, num_rows), dtype=torch.int32, device=GPU)
        rows = reference.QueryRows(begins_B1=begins, longest=num_rows)
        ms = timed(
            lambda: flash_prefill.paged_prefill(q_THd, rows, cache, contexts, HEAD_DIM**-0.5)  # noqa: B023
        )
        computed = 4 * HEAD_DIM * HEADS * num_rows * (num_keys - num_rows / 2)
        table.add(f"prefill, {num_rows} on {num_keys}, page {page}", ms, computed=computed)


def parts(table: Table, dice: Dice, *, tilings: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what can be measured here, and say why the rest cannot."""
    yield "ceilings", lambda: ceilings(table, dice)
    yield "decode", lambda: decode(table, dice, tilings=tilings)
    yield "elementwise", lambda: elementwise(table, dice)
    for name, needs, part in (
        ("products", availability.BLOCK_GEMM, products),
        ("prefill", availability.FLASH_PREFILL, prefill),
    ):
        reason = availability.why_not(needs, GPU)
        if reason is None:
            yield name, lambda: part(table, dice)  # noqa: B023
        else:
            print(f"no {name}: {reason}")


def main() -> None:
    """Print the tables and write them as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tilings", action="store_true", help="try many tilings of decode")
    arguments = parser.parse_args()
    reason = availability.why_not(availability.TRITON, GPU)
    if reason is not None:
        sys.exit(reason)
    table = Table()
    print(torch.cuda.get_device_name(GPU), "torch", torch.__version__, machine.describe())
    for name, measure in parts(table, Dice(GPU), tilings=arguments.tilings):
        if not arguments.parts or name in arguments.parts:
            measure()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main()
