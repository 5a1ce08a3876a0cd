"""Which tensors a checkpoint must hold for a layer, the embedding and the head. Pure.

A family of models is described here by names and shapes; what is done with the tensors is not.
"""

from __future__ import annotations

import dataclasses
import re

from stage_worker.latent_config import LatentConfig
from stage_worker.model_config import ModelConfig

_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_OUTSIDE_LAYERS = frozenset({_EMBEDDING, _NORM, _HEAD, "model.rotary_emb.inv_freq"})
_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.(.+)", re.ASCII)
_DERIVED = frozenset({"self_attn.rotary_emb.inv_freq"})  # written by old tools; follows from config

_NOT_QUANTISED = frozenset({"router", "embedding", "head"})

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Role -> name within the layer, and shape."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a checkpoint."""

    role: str
    """What it is in the model, such as q; unique within its layer."""
    name: str
    """Its name in the checkpoint."""
    shape: tuple[int, ...]


def layer_specs(config: ModelConfig, layer: int) -> tuple[TensorSpec, ...]:
    """Return all tensors of one layer, absolute index."""
    norm = (config.hidden_size,)
    shapes = {
        "attention_norm": ("input_layernorm.weight", norm),
        **(_heads(config) if config.latent is None else _latent(config, config.latent)),
        "mlp_norm": ("post_attention_layernorm.weight", norm),
        **_feed_forward(config, layer),
    }
    return tuple(
        TensorSpec(role=role, name=f"model.layers.{layer}.{part}", shape=shape)
        for role, (part, shape) in shapes.items()
    )


def _heads(config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    widths = {"q": q_width, "k": kv_width, "v": kv_width}
    shapes: Shapes = {
        part: (f"self_attn.{part}_proj.weight", (width, hidden)) for part, width in widths.items()
    }
    shapes["o"] = ("self_attn.o_proj.weight", (hidden, q_width))
    if config.qkv_bias:
        for part, width in widths.items():
            shapes[f"{part}_bias"] = (f"self_attn.{part}_proj.bias", (width,))
    if config.qk_norm:
        for part in "qk":
            shapes[f"{part}_norm"] = (f"self_attn.{part}_norm.weight", (config.head_dim,))
    return shapes


def _latent(config: ModelConfig, latent: LatentConfig) -> Shapes:
    hidden, heads = config.hidden_size, config.num_heads
    q_width = heads * (latent.plain_dim + latent.rope_dim)
    kv_width = heads * (latent.plain_dim + latent.value_dim)
    shapes: Shapes = {
        "kv_a": ("self_attn.kv_a_proj_with_mqa.weight", (latent.rank + latent.rope_dim, hidden)),
        "latent_norm": ("self_attn.kv_a_layernorm.weight", (latent.rank,)),
        "kv_b": ("self_attn.kv_b_proj.weight", (kv_width, latent.rank)),
        "o": ("self_attn.o_proj.weight", (hidden, heads * latent.value_dim)),
    }
    if latent.query_rank is None:
        return shapes | {"q": ("self_attn.q_proj.weight", (q_width, hidden))}
    return shapes | {
        "q_a": ("self_attn.q_a_proj.weight", (latent.query_rank, hidden)),
        "q_norm": ("self_attn.q_a_layernorm.weight", (latent.query_rank,)),
        "q_b": ("self_attn.q_b_proj.weight", (q_width, latent.query_rank)),
    }


def _feed_forward(config: ModelConfig, layer: int) -> Shapes:
    experts = config.experts
    if experts is None or not config.has_experts(layer):
        return _gated(config, config.intermediate_size, "", "mlp")
    shapes: Shapes = {"router": ("mlp.gate.weight", (experts.num_experts, config.hidden_size))}
    if experts.corrected:
        shapes["correction"] = ("mlp.gate.e_score_correction_bias", (experts.num_experts,))
    if experts.shared_size:
        shapes |= _gated(config, experts.shared_size, "shared.", "mlp.shared_experts")
    for index in range(experts.num_experts):
        block = f"mlp.experts.{index}"
        shapes |= _gated(config, experts.intermediate_size, f"{index}.", block)
    return shapes


def _gated(config: ModelConfig, inner: int, prefix: str, block: str) -> Shapes:
    hidden = config.hidden_size
    return {
        f"{prefix}gate": (f"{block}.gate_proj.weight", (inner, hidden)),
        f"{prefix}up": (f"{block}.up_proj.weight", (inner, hidden)),
        f"{prefix}down": (f"{block}.down_proj.weight", (hidden, inner)),
    }


def embedding_spec(config: ModelConfig) -> TensorSpec:
    """Return the token embedding."""
    shape = (config.vocab_size, config.hidden_size)
    return TensorSpec(role="embedding", name=_EMBEDDING, shape=shape)


def head_specs(config: ModelConfig, *, tied: bool) -> tuple[TensorSpec, TensorSpec]:
    """Return the final norm and the output head, which is the embedding where they are tied."""
    norm = TensorSpec(role="final_norm", name=_NORM, shape=(config.hidden_size,))
    embedding = embedding_spec(config)
    if tied:
        return norm, dataclasses.replace(embedding, role="head")
    return norm, TensorSpec(role="head", name=_HEAD, shape=embedding.shape)


def is_product(spec: TensorSpec) -> bool:
    """Say whether a tensor is a matrix that the rows of a layer are multiplied with.

    Routers are not: a choice between experts must not hang on rounding.
    """
    return len(spec.shape) == 2 and spec.role not in _NOT_QUANTISED


def is_unknown(name: str) -> bool:
    """Say whether a tensor belongs to no layer and is none that models have besides."""
    plain = name.removesuffix("_scale_inv")
    return _LAYER.fullmatch(name) is None and plain not in _OUTSIDE_LAYERS


def layer_of(name: str) -> int | None:
    """Return the layer that a tensor belongs to; None for the rest and for derived tensors."""
    match = _LAYER.fullmatch(name)
    if match is None or match[2] in _DERIVED:
        return None
    return int(match[1])
