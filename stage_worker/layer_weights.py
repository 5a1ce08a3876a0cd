"""Lays out the weights of one layer for the CPU's matrix multiply.

Matrices that read the same input are merged, and each is kept once, in the orientation that the
multiply likes best.

Shapes: D hidden size, J query and kv heads, d head_dim, K input and N output width of a matrix,
E experts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from stage_worker.model_config import ModelConfig
from stage_worker.stored_tensors import StoredTensors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeadsWeights:
    """Attention whose heads have keys and values of their own; y = x @ w."""

    qkv_KN: torch.Tensor
    qkv_bias_N: torch.Tensor | None
    qk_norm_Jd: torch.Tensor | None
    """Scale of every query head, then of every key head."""
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
    experts: tuple[GatedWeights, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    attention_norm_D: torch.Tensor
    attention: HeadsWeights
    mlp_norm_D: torch.Tensor
    mlp: GatedWeights | ExpertsWeights


def lay_out(raw: StoredTensors, config: ModelConfig, dtype: torch.dtype) -> LayerWeights:
    """Copy the tensors of a layer out of their files."""
    return LayerWeights(
        attention_norm_D=raw["attention_norm"].to(dtype, copy=True),
        attention=_heads(raw, config, dtype),
        mlp_norm_D=raw["mlp_norm"].to(dtype, copy=True),
        mlp=_experts(raw, config, dtype) if "router" in raw else _gated(raw, "", dtype),
    )


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


def _experts(raw: StoredTensors, config: ModelConfig, dtype: torch.dtype) -> ExpertsWeights:
    num_experts = config.experts.num_experts if config.experts else 0
    return ExpertsWeights(
        router_DE=merge_outputs([raw["router"]], dtype),
        experts=tuple(_gated(raw, f"{index}.", dtype) for index in range(num_experts)),
    )


def merge_outputs(parts_NK: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Copy matrices of one input side by side into one [K, N].

    The memory order follows the longer side, which is what one to two rows of input multiply
    fastest with: 15 to 20 GB/s of weights on one AVX2 core instead of 11 in the other order.
    """
    num_inputs = parts_NK[0].shape[1]
    num_outputs = sum(part.shape[0] for part in parts_NK)
    if num_inputs > num_outputs:
        merged_KN = torch.empty(num_outputs, num_inputs, dtype=dtype).t()
    else:
        merged_KN = torch.empty(num_inputs, num_outputs, dtype=dtype)
    begin = 0
    for part in parts_NK:
        merged_KN[:, begin : begin + part.shape[0]].copy_(part.t())
        begin += part.shape[0]
    return merged_KN
