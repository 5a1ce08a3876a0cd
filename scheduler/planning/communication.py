"""Bytes that parallel prefill moves: tensor and context parallelism beside a pipeline. Pure.

Source: https://lmsys.org/blog/2026-01-15-chunked-pipeline (communication volume, bubble ratio)
"""

from __future__ import annotations

import dataclasses
from typing import Self

from scheduler.planning.model_shape import ModelShape


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """One prompt on num_devices, each way of splitting it by itself."""

    prompt_tokens: int
    num_devices: int
    tensor_bytes: int
    """Two all-reduces a layer, each in a ring: 2 (P-1) (S H / P) 2 L bytes."""
    tensor_bytes_large: int
    """The same for many devices: 4 S H L bytes."""
    context_bytes: int
    """An all-gather of keys and values a layer: (P-1) (S / P) 2 H_kv L bytes."""
    pipeline_bytes: int
    """All links together: S H (P-1) bytes."""
    link_bytes: int
    """One link of the pipeline: S H bytes; 0 on one device."""

    @classmethod
    def of(
        cls, shape: ModelShape, *, prompt_tokens: int, num_devices: int, element_bytes: int
    ) -> Self:
        """Count what one prompt moves; 2 H_kv is what the cache keeps of a token."""
        others = num_devices - 1
        activations = prompt_tokens * shape.hidden_size * element_bytes
        cached = prompt_tokens * shape.cache_width(shape.whole) * element_bytes
        return cls(
            prompt_tokens=prompt_tokens,
            num_devices=num_devices,
            tensor_bytes=4 * others * activations * shape.num_layers // num_devices,
            tensor_bytes_large=4 * activations * shape.num_layers,
            context_bytes=others * cached // num_devices,
            pipeline_bytes=activations * others,
            link_bytes=activations if others else 0,
        )


def equal_bubble_ratio(num_stages: int, num_microbatches: int) -> float:
    """Return the bubble of microbatches of equal time: (P-1) / (P-1 + M)."""
    return (num_stages - 1) / (num_stages - 1 + num_microbatches)
