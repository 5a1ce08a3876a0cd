"""How many multiplications and additions a chunk asks of a layer, by its shape. Pure."""

from __future__ import annotations

import dataclasses
import math

from stage_worker.model_config import ModelConfig
from stage_worker.tensor_specs import is_product, layer_specs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Of one chunk."""

    products: float
    """By weights; of experts those that rows use."""
    attention: float
    """By keys and values that are not masked."""

    @property
    def all(self) -> float:
        """Both."""
        return self.products + self.attention


def layer_operations(config: ModelConfig, layer: int, num_rows: int, prefix: int) -> Operations:
    """Return what a chunk behind a prefix takes in one layer."""
    numbers = 0.0
    for spec in layer_specs(config, layer):
        share = 1.0
        if config.experts is not None and spec.role[0].isdigit():
            share = config.experts.experts_per_token / config.experts.num_experts
        if is_product(spec):
            numbers += math.prod(spec.shape) * share
    latent = config.latent
    width = 2 * config.head_dim
    if latent is not None:
        width = latent.plain_dim + latent.rope_dim + latent.value_dim
    pairs = num_rows * prefix + num_rows * (num_rows + 1) / 2
    return Operations(
        products=2 * num_rows * numbers, attention=2 * pairs * config.num_heads * width
    )
