"""What config.json says about layers whose feed-forward block is a mixture of experts. Pure."""

from __future__ import annotations

import dataclasses
from typing import Literal

from chunkmesh.errors import ConfigError
from stage_worker.config_fields import Fields, choice, count, flag, items, positive

ExpertsKind = Literal["qwen3", "deepseek2", "deepseek3"]
_MOST_EXPERTS = 4096
"""In a layer; each has tensors of its own that are looked for by name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """How tokens are routed, and how large experts are."""

    layers: tuple[int, ...]
    """Absolute indices of the layers with experts; the others have one dense block."""
    num_experts: int
    """A multiple of num_groups."""
    experts_per_token: int
    """At most as many as the chosen groups hold."""
    intermediate_size: int
    """Inner width of one expert."""
    shared_size: int = 0
    """Inner width of the block that all tokens use besides; 0 if there is none."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    corrected: bool = False
    """A bias of each expert counts when experts are chosen, but not when they are weighed."""
    num_groups: int = 1
    groups_per_token: int = 1
    """Only experts of a token's best groups are chosen from; 1 <= it <= num_groups."""
    group_judges: int = 1
    """A group is as good as so many of its best experts together."""
    renormalised: bool = False
    """The weights of a token's experts are scaled to sum up to 1."""
    scaling_factor: float = 1.0
    """All weights are multiplied by it."""


def parse_experts(raw: Fields, kind: ExpertsKind | None) -> ExpertsConfig | None:
    """Read the routing of a family; None where it has no experts.

    Raises:
        ConfigError: a field is missing, impossible, or asks for something unknown.
    """
    if kind is None:
        return None
    readers = {"qwen3": _qwen3, "deepseek2": _deepseek2, "deepseek3": _deepseek3}
    return _check(readers[kind](raw))


def _check(config: ExpertsConfig) -> ExpertsConfig:
    if config.num_experts % config.num_groups or config.groups_per_token > config.num_groups:
        raise ConfigError(
            f"{config.num_experts} experts do not fit n_group={config.num_groups}, "
            f"topk_group={config.groups_per_token}"
        )
    group_size = config.num_experts // config.num_groups
    reachable = group_size * config.groups_per_token
    if config.experts_per_token > reachable:
        raise ConfigError(
            f"num_experts_per_tok={config.experts_per_token} is more than the "
            f"{reachable} experts to choose from"
        )
    if config.num_groups > 1 and config.group_judges > group_size:
        raise ConfigError(f"n_group={config.num_groups} leaves groups of one expert")
    return config


def _num_experts(raw: Fields) -> int:
    """Read the number of experts, which tools have written under several names."""
    for field in ("num_experts", "n_routed_experts", "num_local_experts"):
        if raw.get(field) is not None:
            return count(raw, field, most=_MOST_EXPERTS)
    raise ConfigError("config.json states no num_experts, n_routed_experts or num_local_experts")


def _qwen3(raw: Fields) -> ExpertsConfig:
    step = count(raw, "decoder_sparse_step", default=1)
    dense = frozenset(items(raw, "mlp_only_layers", int) or ())
    layers = range(count(raw, "num_hidden_layers"))
    return ExpertsConfig(
        layers=tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0),
        num_experts=_num_experts(raw),
        experts_per_token=count(raw, "num_experts_per_tok", default=8),
        intermediate_size=count(raw, "moe_intermediate_size", default=768),
        renormalised=flag(raw, "norm_topk_prob"),
    )


def _deepseek2(raw: Fields) -> ExpertsConfig:
    choice(raw, "scoring_func", ("softmax",), default="softmax")
    method = choice(raw, "topk_method", ("greedy", "group_limited_greedy"), default="greedy")
    if flag(raw, "norm_topk_prob"):
        raise ConfigError("norm_topk_prob=True is not known for this architecture")
    grouped = method == "group_limited_greedy"
    return dataclasses.replace(
        _deepseek(raw),
        num_groups=count(raw, "n_group") if grouped else 1,
        groups_per_token=count(raw, "topk_group") if grouped else 1,
        scaling_factor=positive(raw, "routed_scaling_factor", default=1.0),
    )


def _deepseek3(raw: Fields) -> ExpertsConfig:
    choice(raw, "scoring_func", ("sigmoid",), default="sigmoid")
    choice(raw, "topk_method", ("noaux_tc",), default="noaux_tc")
    return dataclasses.replace(
        _deepseek(raw),
        scoring="sigmoid",
        corrected=True,
        num_groups=count(raw, "n_group", default=8),
        groups_per_token=count(raw, "topk_group", default=4),
        group_judges=2,
        renormalised=flag(raw, "norm_topk_prob", default=True),
        scaling_factor=positive(raw, "routed_scaling_factor", default=2.5),
    )


def _deepseek(raw: Fields) -> ExpertsConfig:
    """Read what both versions share."""
    if count(raw, "moe_layer_freq", default=1) != 1:
        raise ConfigError(f"moe_layer_freq={raw['moe_layer_freq']} is not supported; 1 is")
    first = count(raw, "first_k_dense_replace", default=0, least=0)
    size = count(raw, "moe_intermediate_size")
    return ExpertsConfig(
        layers=tuple(range(first, count(raw, "num_hidden_layers"))),
        num_experts=_num_experts(raw),
        experts_per_token=count(raw, "num_experts_per_tok"),
        intermediate_size=size,
        shared_size=size * count(raw, "n_shared_experts"),
    )
