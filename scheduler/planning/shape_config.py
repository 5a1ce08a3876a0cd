"""Reads a model's shape from the fields of a Hugging Face config.json. Pure.

Only sizes are read: rope, windows and element types do not change what is planned, so a layer
with a sliding window counts as one without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from chunkmesh.errors import ConfigError
from scheduler.planning.model_shape import LayerShape, ModelShape

_MAX_SIZE = 1 << 24

Size = Annotated[int, Field(ge=1, le=_MAX_SIZE)]
SizeOrNone = Annotated[int, Field(ge=0, le=_MAX_SIZE)]
"""0 if the model has none of it."""


class _Config(BaseModel):
    """The fields that are read; all others are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Field(ge=1, le=1024)]
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size
    max_position_embeddings: Size | None = None
    tie_word_embeddings: bool = False
    q_lora_rank: Size | None = None
    kv_lora_rank: Size | None = None
    qk_nope_head_dim: Size = 128
    qk_rope_head_dim: Size = 64
    v_head_dim: Size = 128
    num_experts: Annotated[
        int,
        Field(
            ge=0,
            le=_MAX_SIZE,
            validation_alias=AliasChoices("num_experts", "n_routed_experts", "num_local_experts"),
        ),
    ] = 0
    num_experts_per_tok: Size = 1
    moe_intermediate_size: Size | None = None
    n_shared_experts: SizeOrNone | None = None
    shared_expert_intermediate_size: SizeOrNone | None = None
    first_k_dense_replace: SizeOrNone = 0
    decoder_sparse_step: Size = 1
    mlp_only_layers: tuple[int, ...] | None = Field(default=None, strict=False)

    def has_experts(self, layer: int) -> bool:
        """Say whether a layer has experts instead of one dense block."""
        return (
            self.num_experts > 0
            and layer >= self.first_k_dense_replace
            and (layer + 1) % self.decoder_sparse_step == 0
            and layer not in (self.mlp_only_layers or ())
        )


def parse_shape(fields: Mapping[str, object], *, name: str) -> ModelShape:
    """Return the shape that a config.json states; name says which, in errors.

    Raises:
        ConfigError: a field is missing or out of range; names it.
    """
    try:
        config = _Config.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"]))
        value = "" if fault["type"] == "missing" else f" is {repr(fault['input'])[:80]}"
        raise ConfigError(f"{name}: {field}{value}: {fault['msg']}") from error
    if config.num_experts < config.num_experts_per_tok and config.num_experts:
        raise ConfigError(
            f"{name}: num_experts_per_tok is {config.num_experts_per_tok},"
            f" more than the {config.num_experts} experts"
        )
    if config.head_dim is None and config.hidden_size < config.num_attention_heads:
        raise ConfigError(
            f"{name}: hidden_size is {config.hidden_size}, less than the"
            f" {config.num_attention_heads} heads"
        )
    return ModelShape(
        name=name,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        has_tied_head=config.tie_word_embeddings,
        context_tokens=config.max_position_embeddings,
        layers=tuple(_layer(config, layer) for layer in range(config.num_hidden_layers)),
    )


def _layer(config: _Config, layer: int) -> LayerShape:
    """Add up one layer."""
    whole, active = _experts(config) if config.has_experts(layer) else (_dense(config),) * 2
    if config.kv_lora_rank is None:
        return _attention_heads(config, whole, active)
    return _latent_attention(config, config.kv_lora_rank, whole, active)


def _attention_heads(config: _Config, whole: int, active: int) -> LayerShape:
    """Return a layer whose cache keeps keys and values."""
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads or heads
    width = config.head_dim or config.hidden_size // heads
    attention = 2 * config.hidden_size * width * (heads + kv_heads)
    return LayerShape(
        parameters=whole + attention,
        active_parameters=active + attention,
        pair_width=2 * heads * width,
        cache_width=2 * kv_heads * width,
    )


def _latent_attention(config: _Config, rank: int, whole: int, active: int) -> LayerShape:
    """Return a layer whose cache keeps one latent, unpacked for each chunk."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    query_width = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
    value_width = heads * config.v_head_dim
    query = hidden * query_width
    if config.q_lora_rank is not None:
        query = config.q_lora_rank * (hidden + query_width)
    unpacking = rank * heads * (config.qk_nope_head_dim + config.v_head_dim)
    cache_width = rank + config.qk_rope_head_dim
    attention = query + hidden * cache_width + unpacking + value_width * hidden
    return LayerShape(
        parameters=whole + attention,
        active_parameters=active + attention,
        unpacking_parameters=unpacking,
        pair_width=query_width + value_width,
        cache_width=cache_width,
    )


def _dense(config: _Config) -> int:
    """Return the weights of a gated block."""
    return 3 * config.hidden_size * config.intermediate_size


def _experts(config: _Config) -> tuple[int, int]:
    """Return the weights of a block of experts: all, and those of one token."""
    width = config.moe_intermediate_size or config.intermediate_size
    expert = 3 * config.hidden_size * width
    shared = (config.n_shared_experts or 0) * expert
    shared += 3 * config.hidden_size * (config.shared_expert_intermediate_size or 0)
    always = shared + config.hidden_size * config.num_experts
    return (
        config.num_experts * expert + always,
        config.num_experts_per_tok * expert + always,
    )
