"""Lays out the weights of one layer for the CPU's matrix multiply.

Matrices that read the same input are merged, and each is kept once, in the orientation that the
multiply likes best.

Shapes: D hidden size, J query and kv heads, d head_dim, K input and N output width of a matrix,
E experts, H heads, R latent rank, Q rank of queries, p plain part of a head, v value width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from stage_worker.latent_config import LatentConfig
from stage_worker.model_config import ModelConfig
from stage_worker.stored_tensors import StoredTensors

_CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeadsWeights:
    """Attention whose heads have keys and values of their own; y = x @ w."""

    qkv_KN: torch.Tensor
    qkv_bias_N: torch.Tensor | None
    qk_norm_Jd: torch.Tensor | None
    """Scale of every query head, then of every key head."""
    o_KN: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatentWeights:
    """Attention whose keys and values come from one latent; y = x @ w."""

    entry_KN: torch.Tensor
    """To queries, or to what they are squeezed through, then to the latent and the turned key."""
    q_norm_Q: torch.Tensor | None
    """None where queries are not squeezed, as the next one."""
    q_up_KN: torch.Tensor | None
    latent_norm_R: torch.Tensor
    key_up_HpR: torch.Tensor
    """From the plain part of each head's query to the latent."""
    value_up_HRv: torch.Tensor
    """From what each head attended to, to its value."""
    o_KN: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatedWeights:
    """A gated feed-forward block; y = x @ w."""

    gate_up_KN: torch.Tensor
    down_KN: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsWeights:
    """A feed-forward block of many small ones."""

    router_DE: torch.Tensor
    """Always float32, as the next one: a choice between experts must not hang on rounding."""
    correction_E: torch.Tensor | None
    shared: GatedWeights | None
    experts: tuple[GatedWeights, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    attention_norm_D: torch.Tensor
    attention: HeadsWeights | LatentWeights
    mlp_norm_D: torch.Tensor
    mlp: GatedWeights | ExpertsWeights


def lay_out(raw: StoredTensors, config: ModelConfig, dtype: torch.dtype) -> LayerWeights:
    """Copy the tensors of a layer out of their files."""
    return LayerWeights(
        attention_norm_D=raw["attention_norm"].to(dtype, copy=True),
        attention=_attention(raw, config, dtype),
        mlp_norm_D=raw["mlp_norm"].to(dtype, copy=True),
        mlp=_experts(raw, dtype) if "router" in raw else _gated(raw, "", dtype),
    )


def _attention(
    raw: StoredTensors, config: ModelConfig, dtype: torch.dtype
) -> HeadsWeights | LatentWeights:
    if config.latent is None:
        return _heads(raw, config, dtype)
    return _latent(raw, config, config.latent, dtype)


def _latent(
    raw: StoredTensors, config: ModelConfig, latent: LatentConfig, dtype: torch.dtype
) -> LatentWeights:
    """Lay out latent attention; the scale of its scores goes into the queries.

    Attention divides by the root of the cached width, but a head is only as wide as its parts.
    """
    plain, rope = latent.plain_dim, latent.rope_dim
    scale = math.sqrt(config.head_dim / (plain + rope)) * config.rope.score_factor
    q_NK = raw["q_b" if latent.query_rank else "q"].float() * scale
    q_HnK = turn_halves(q_NK.view(config.num_heads, plain + rope, -1), latent)
    q_NK = q_HnK.reshape(q_NK.shape)
    kv_a_NK = turn_halves(raw["kv_a"].to(dtype)[None], latent)[0]
    kv_b_HnR = raw["kv_b"].to(dtype).view(config.num_heads, -1, latent.rank)
    squeezed = latent.query_rank is not None
    return LatentWeights(
        entry_KN=merge_outputs([raw["q_a"] if squeezed else q_NK, kv_a_NK], dtype),
        q_norm_Q=raw["q_norm"].to(dtype, copy=True) if squeezed else None,
        q_up_KN=merge_outputs([q_NK], dtype) if squeezed else None,
        latent_norm_R=raw["latent_norm"].to(dtype, copy=True),
        key_up_HpR=kv_b_HnR[:, :plain].clone(),
        value_up_HRv=kv_b_HnR[:, plain:]
        .transpose(1, 2)
        .clone(memory_format=torch.contiguous_format),
        o_KN=merge_outputs([raw["o"]], dtype),
    )


def turn_halves(rows_HnK: torch.Tensor, latent: LatentConfig) -> torch.Tensor:
    """Reorder each head's last rope_dim rows, so that halves are turned and not neighbours."""
    if not latent.interleaved:
        return rows_HnK
    num_kept = rows_HnK.shape[1] - latent.rope_dim
    rope_HrK = rows_HnK[:, num_kept:]
    return torch.cat((rows_HnK[:, :num_kept], rope_HrK[:, 0::2], rope_HrK[:, 1::2]), dim=1)


def _heads(raw: StoredTensors, config: ModelConfig, dtype: torch.dtype) -> HeadsWeights:
    bias_N = norm_Jd = None
    if config.qkv_bias:
        bias_N = torch.cat([raw[f"{part}_bias"].to(dtype) for part in "qkv"])
    if config.qk_norm:
        q_Hd = raw["q_norm"].to(dtype).expand(config.num_heads, -1)
        norm_Jd = torch.cat((q_Hd, raw["k_norm"].to(dtype).expand(config.num_kv_heads, -1)))
    return HeadsWeights(
        qkv_KN=merge_outputs([raw[part] for part in "qkv"], dtype),
        qkv_bias_N=bias_N,
        qk_norm_Jd=norm_Jd,
        o_KN=merge_outputs([raw["o"]], dtype),
    )


def _gated(raw: StoredTensors, prefix: str, dtype: torch.dtype) -> GatedWeights:
    return GatedWeights(
        gate_up_KN=merge_outputs([raw[f"{prefix}gate"], raw[f"{prefix}up"]], dtype),
        down_KN=merge_outputs([raw[f"{prefix}down"]], dtype),
    )


def _experts(raw: StoredTensors, dtype: torch.dtype) -> ExpertsWeights:
    num_experts = len(raw["router"])
    return ExpertsWeights(
        router_DE=merge_outputs([raw["router"]], torch.float32),
        correction_E=raw["correction"].to(torch.float32, copy=True)
        if "correction" in raw
        else None,
        shared=_gated(raw, "shared.", dtype) if "shared.gate" in raw else None,
        experts=tuple(_gated(raw, f"{index}.", dtype) for index in range(num_experts)),
    )


def merge_outputs(
    parts_NK: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device = _CPU
) -> torch.Tensor:
    """Copy matrices of one input side by side into one [K, N].

    The memory order follows the longer side, which is what one to two rows of input multiply
    fastest with: 15 to 20 GB/s of weights on one AVX2 core instead of 11 in the other order. Of
    narrow types the inputs of one output lie side by side: the other order is ten times slower.
    On other devices, too, they do: it is how a checkpoint has them.
    """
    num_inputs = parts_NK[0].shape[1]
    num_outputs = sum(part.shape[0] for part in parts_NK)
    if num_inputs > num_outputs or dtype != torch.float32 or device.type != "cpu":
        merged_NK = torch.empty(num_outputs, num_inputs, dtype=dtype, device=device)
        begin = 0
        for part in parts_NK:
            merged_NK[begin : begin + part.shape[0]].copy_(part)
            begin += part.shape[0]
        return merged_NK.t()
    merged_KN = torch.empty(num_inputs, num_outputs, dtype=dtype)
    begin = 0
    for part in parts_NK:
        merged_KN[:, begin : begin + part.shape[0]].copy_(part.t())
        begin += part.shape[0]
    return merged_KN
