"""Seeded random weights in place of a checkpoint, to measure a model without having it.

A tensor depends on its name, its shape and the kind of device only, so however the layers are
split, stages agree.
"""

from __future__ import annotations

import math
from typing import Self

import torch
import xxhash

from stage_worker.tensor_specs import TensorSpec


class DummyWeights:
    """Makes every tensor that is asked for, on a device; stands in for a Checkpoint."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, spec: TensorSpec) -> torch.Tensor:
        """Return a float32 tensor whose products keep the size of what they multiply."""
        seed = xxhash.xxh64_intdigest(spec.name.encode()) >> 1
        generator = torch.Generator(self._device).manual_seed(seed)
        values = torch.empty(spec.shape, device=self._device)
        if "norm" in spec.role:
            return values.uniform_(0.5, 1.5, generator=generator)
        inputs = spec.shape[-1] if len(spec.shape) > 1 else 100
        return values.normal_(0, 1 / math.sqrt(inputs), generator=generator)

    def stored_dtype(self, spec: TensorSpec) -> torch.dtype:  # noqa: ARG002 a Checkpoint's
        """Return the type of what read returns."""
        return torch.float32

    def holds(self, spec: TensorSpec) -> bool:  # noqa: ARG002 a Checkpoint's
        """Hold no head besides the one that is asked for."""
        return False

    def check_accounted(self, expected: frozenset[str], first_layer: int, last_layer: int) -> None:
        """Do nothing: only what is asked for exists."""

    def layers_from(self, first_layer: int) -> tuple[int, ...]:  # noqa: ARG002 a Checkpoint's
        """Return no layers."""
        return ()
