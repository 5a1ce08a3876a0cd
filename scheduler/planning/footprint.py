"""Bytes of a plan: what a prompt leaves on each stage, and what crosses each link. Pure."""

from __future__ import annotations

import dataclasses
from typing import Self

from scheduler.planning.model_shape import ModelShape
from scheduler.planning.plan import Plan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Of one prompt."""

    kv_bytes: tuple[int, ...]
    """By stage: whole pages of its layers."""
    weight_bytes: tuple[int, ...]
    """By stage."""
    link_bytes: int
    """Each link; 0 with one stage."""

    @property
    def largest_bytes(self) -> int:
        """Weights and KV of the stage that has most of both."""
        return max(self.stage_bytes)

    @property
    def stage_bytes(self) -> tuple[int, ...]:
        """Weights and KV by stage."""
        return tuple(map(sum, zip(self.weight_bytes, self.kv_bytes, strict=True)))

    @classmethod
    def of(cls, plan: Plan, shape: ModelShape, *, page_tokens: int, element_bytes: int) -> Self:
        """Count the bytes of a plan's prompt."""
        ranges, tokens = plan.cluster.ranges, plan.load.prompt_tokens
        kept = -(-tokens // page_tokens) * page_tokens * element_bytes
        has_links = len(ranges) > 1
        return cls(
            kv_bytes=tuple(kept * shape.cache_width(layers) for layers in ranges),
            weight_bytes=tuple(element_bytes * shape.parameters(layers) for layers in ranges),
            link_bytes=tokens * shape.hidden_size * element_bytes if has_links else 0,
        )
