"""What config.json says about attention whose keys and values come from one latent vector. Pure.

Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

import dataclasses

from chunkmesh.errors import ConfigError
from stage_worker.config_fields import Fields, count, flag


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Widths; the cache holds rank + rope_dim numbers a token and layer, whatever the heads."""

    query_rank: int | None
    """Width that queries are squeezed through; None if they are not."""
    rank: int
    """Width of the latent vector."""
    plain_dim: int
    """Part of a head's query and key that is not turned."""
    rope_dim: int
    """Part that is turned; even."""
    value_dim: int
    interleaved: bool
    """The checkpoint turns neighbours (2i, 2i + 1) instead of halves (i, i + rope_dim / 2)."""

    @property
    def cached_dim(self) -> int:
        """Width of what the cache holds of a token: the latent, then the turned key."""
        return self.rank + self.rope_dim

    @property
    def expanded_dim(self) -> int:
        """Width of a head's own keys and values; attention wants one for both."""
        return max(self.plain_dim + self.rope_dim, self.value_dim)


def parse_latent(raw: Fields, *, present: bool) -> LatentConfig | None:
    """Read the widths; None where a family has keys and values of their own.

    Raises:
        ConfigError: a field is missing or impossible.
    """
    if not present:
        return None
    stated = raw.get("q_lora_rank") is not None
    config = LatentConfig(
        query_rank=count(raw, "q_lora_rank") if stated else None,
        rank=count(raw, "kv_lora_rank", default=512),
        plain_dim=count(raw, "qk_nope_head_dim", default=128),
        rope_dim=count(raw, "qk_rope_head_dim", default=64),
        value_dim=count(raw, "v_head_dim", default=128),
        interleaved=flag(raw, "rope_interleave", default=True),
    )
    if config.rope_dim % 2:
        raise ConfigError(f"qk_rope_head_dim={config.rope_dim} is odd; rope needs pairs")
    return config
