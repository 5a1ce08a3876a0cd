"""What config.json says about layers whose feed-forward block is a mixture of experts. Pure."""

from __future__ import annotations

import dataclasses
from typing import Literal

from chunkmesh.errors import ConfigError
from stage_worker.config_fields import Fields, count

ExpertsKind = Literal["qwen3"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """How tokens are routed, and how large experts are."""

    layers: tuple[int, ...]
    """Absolute indices of the layers with experts; the others have one dense block."""
    num_experts: int
    experts_per_token: int
    """<= num_experts"""
    intermediate_size: int
    """Inner width of one expert."""
    renormalised: bool
    """The weights of a token's experts are scaled to sum up to 1."""


def parse_experts(raw: Fields, kind: ExpertsKind | None) -> ExpertsConfig | None:
    """Read the routing of a family; None where it has no experts.

    Raises:
        ConfigError: a field is missing or impossible.
    """
    if kind is None:
        return None
    return _check(_qwen3(raw))


def _check(config: ExpertsConfig) -> ExpertsConfig:
    if config.experts_per_token > config.num_experts:
        raise ConfigError(
            f"num_experts_per_tok={config.experts_per_token} is more than the "
            f"{config.num_experts} experts to choose from"
        )
    return config


def _num_experts(raw: Fields) -> int:
    """Read the number of experts, which tools have written under several names."""
    for field in ("num_experts", "n_routed_experts", "num_local_experts"):
        if raw.get(field) is not None:
            return count(raw, field)
    raise ConfigError("config.json states no num_experts, n_routed_experts or num_local_experts")


def _qwen3(raw: Fields) -> ExpertsConfig:
    step = count(raw, "decoder_sparse_step", default=1)
    dense = frozenset(raw.get("mlp_only_layers") or ())
    layers = range(count(raw, "num_hidden_layers"))
    return ExpertsConfig(
        layers=tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0),
        num_experts=_num_experts(raw),
        experts_per_token=count(raw, "num_experts_per_tok", default=8),
        intermediate_size=count(raw, "moe_intermediate_size", default=768),
        renormalised=bool(raw.get("norm_topk_prob", False)),
    )
