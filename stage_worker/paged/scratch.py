"""Scratch memory of the forward pass on a device: one piece for each name, as large as ever needed.

The allocator of a GPU keeps what it gave for each size; chunks of ever new lengths would fill it.
"""

from __future__ import annotations

import math

import torch


class Scratch:
    """Owner of the memory; what take returned is void when its name is taken again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: dict[str, torch.Tensor] = {}
        self._taken: dict[str, torch.Tensor] = {}
        """What was taken last; the layers of a microbatch all take the same."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return contiguous memory with any contents; a name always has one dtype."""
        taken = self._taken.get(name)
        if taken is not None and taken.shape == shape:
            return taken
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or memory.numel() < size:
            self._memory.pop(name, None)
            memory = self._memory[name] = torch.empty(size, dtype=dtype, device=self._device)
        self._taken[name] = memory[:size].view(shape)
        return self._taken[name]
