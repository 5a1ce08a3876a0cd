"""What decoder layers cost when they are made of the kernels: the bound for a stage on a GPU.

One layer of Qwen3-8B's shape with random weights runs prefill chunks behind prefixes, and decode
steps of all 36 layers as one graph. Nothing else of ChunkMesh takes part.
Run: python -m tests.bench.gpu_layer [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import torch

from stage_worker.kernels import reference, weight_blocks
from stage_worker.kernels.add_norm import add_norm
from stage_worker.kernels.block_gemm import ScaledBlocks, ScaledRows, multiply
from stage_worker.kernels.flash_prefill import paged_prefill
from stage_worker.kernels.gated_silu import gated_silu
from stage_worker.kernels.paged_decode import PagedDecode
from stage_worker.kernels.quantise import empty_scales, quantise
from stage_worker.kernels.rope_store import rope_store
from tests.bench.gpu_kernels import (
    GPU,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    Table,
    big_cache,
    timed,
)
from tests.kernel_inputs import CacheShape, Dice, angles, head_norms

LAYERS = 36
CHUNK = 4096
PROMPT = 131072
PREFIXES = (0, 32768, 65536, 98304, PROMPT - CHUNK)
PAGE = 128
SCALE = HEAD_DIM**-0.5


class Bf16Linear:
    """A weight as it is."""

    def __init__(self, weight_NK: torch.Tensor) -> None:
        self._weight_NK = weight_NK

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        """Return x times the transposed weight."""
        return x_TK @ self._weight_NK.T


class Fp8Linear:
    """A quantised weight; its input is quantised too."""

    def __init__(self, weight_NK: torch.Tensor) -> None:
        values_NK, scale_ng = weight_blocks.quantise_blocks(weight_NK)
        self._blocks = ScaledBlocks(values_NK=values_NK, scale_ng=scale_ng)

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        """Return x times the transposed weight."""
        values_TK = torch.empty_like(x_TK, dtype=torch.float8_e4m3fn)
        scale_Tg = empty_scales(x_TK.shape[0], x_TK.shape[1], GPU)
        quantise(x_TK, values_TK, scale_Tg)
        out_TN = x_TK.new_empty(len(x_TK), len(self._blocks.values_NK))
        multiply(ScaledRows(values_TK=values_TK, scale_Tg=scale_Tg), self._blocks, out_TN)
        return out_TN


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What all layers share in one step."""

    hidden_TD: torch.Tensor
    angles: reference.Angles
    slots_T: torch.Tensor
    cache: reference.PagedKeysValues
    attend: Callable[[torch.Tensor], torch.Tensor]


class Layer:
    """One decoder layer."""

    def __init__(self, dice: Dice, linear: type[Bf16Linear | Fp8Linear]) -> None:
        self._norms = head_norms(dice, HEAD_DIM)
        self._attention_norm_D, self._mlp_norm_D = dice.normal(HIDDEN), dice.normal(HIDDEN)
        self._qkv, self._o, self._gate_up, self._down = (
            linear(dice.normal(outer, inner) / inner**0.5)
            for outer, inner in (
                ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
                (HIDDEN, HEADS * HEAD_DIM),
                (2 * INNER, HIDDEN),
                (HIDDEN, INNER),
            )
        )

    def run(self, batch: Batch, delta_TD: torch.Tensor) -> torch.Tensor:
        """Add delta to the residual stream; return what this layer adds to it."""
        num_rows = len(delta_TD)
        normed_TD = torch.empty_like(delta_TD)
        add_norm(delta_TD, batch.hidden_TD, self._attention_norm_D, 1e-6, normed_TD)
        qkv_TJd = self._qkv(normed_TD).view(num_rows, -1, HEAD_DIM)
        q_THd = qkv_TJd.new_empty(num_rows, HEADS, HEAD_DIM)
        rope_store(qkv_TJd, batch.angles, self._norms, batch.cache, batch.slots_T, q_THd)
        attended_TD = batch.attend(q_THd).view(num_rows, -1)
        add_norm(self._o(attended_TD), batch.hidden_TD, self._mlp_norm_D, 1e-6, normed_TD)
        inner_TI = normed_TD.new_empty(num_rows, INNER)
        gated_silu(self._gate_up(normed_TD), inner_TI)
        return self._down(inner_TI)


def chunk_of(dice: Dice, prefix: int) -> Batch:
    """Return a prefill chunk behind a prefix, in a full cache."""
    shape = CacheShape(
        num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, page_tokens=PAGE, num_keys=(PROMPT,)
    )
    cache, contexts = big_cache(dice, shape)
    begins = torch.tensor((0, CHUNK), dtype=torch.int32, device=GPU)
    rows = reference.QueryRows(begins_B1=begins, longest=CHUNK)
    num_keys = prefix + CHUNK
    seen = reference.PagedContexts(
        page_table_Bp=contexts.page_table_Bp,
        num_keys_B=torch.tensor([num_keys], dtype=torch.int32, device=GPU),
    )
    positions = torch.arange(prefix, num_keys, device=GPU)
    pages = contexts.page_table_Bp[0, positions // PAGE].long()
    return Batch(
        hidden_TD=dice.normal(CHUNK, HIDDEN),
        angles=angles(dice, CHUNK, HEAD_DIM, prefix),
        slots_T=pages * PAGE + positions % PAGE,
        cache=cache,
        attend=lambda q_THd: paged_prefill(q_THd, rows, cache, seen, SCALE),
    )


def decode_of(dice: Dice, batch: int, num_keys: int) -> Batch:
    """Return a decode step of a batch of equal contexts."""
    shape = CacheShape(
        num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, page_tokens=PAGE, num_keys=(num_keys,) * batch
    )
    cache, contexts = big_cache(dice, shape)
    decode = PagedDecode(GPU)

    def attend(q_BHd: torch.Tensor) -> torch.Tensor:
        out_BHd = torch.empty_like(q_BHd)
        decode(q_BHd, cache, contexts, out_BHd, SCALE)
        return out_BHd

    return Batch(
        hidden_TD=dice.normal(batch, HIDDEN),
        angles=angles(dice, batch, HEAD_DIM),
        slots_T=contexts.page_table_Bp[:, -1].long() * PAGE + PAGE - 1,
        cache=cache,
        attend=attend,
    )


def run_all(layer: Layer, batch: Batch, num_layers: int) -> None:
    """Run so many layers, from a fresh addition to a bounded residual stream."""
    batch.hidden_TD.zero_()
    delta_TD = torch.ones_like(batch.hidden_TD)
    for _ in range(num_layers):
        delta_TD = layer.run(batch, delta_TD)


def main() -> None:
    """Print the tables and write them as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table, dice = Table(), Dice(GPU)
    for name, linear in (("bf16", Bf16Linear), ("FP8", Fp8Linear)):
        layer = Layer(dice, linear)
        times = []
        for prefix in PREFIXES:
            chunk = chunk_of(dice, prefix)
            times.append(timed(lambda: run_all(layer, chunk, 4)) / 4)  # noqa: B023
            table.add(f"{name} layer, {CHUNK} rows after {prefix}", times[-1])
        whole = (times[0] + times[-1]) / 2 * LAYERS * PROMPT / CHUNK
        table.add(f"{name}, {LAYERS} layers, {PROMPT} tokens, from these", whole)
        for size, num_keys in ((1, 4096), (1, 32768), (1, 131072), (32, 4096), (32, 32768)):
            step = decode_of(dice, size, num_keys)
            ms = timed(lambda: run_all(layer, step, LAYERS), graph=True)  # noqa: B023
            table.add(f"{name} decode step, {LAYERS} layers, {size} x {num_keys} keys", ms)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main()
