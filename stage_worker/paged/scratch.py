"""Scratch memory of the forward pass on a device: one piece for each name, as large as ever needed.

The allocator of a GPU keeps what it gave for each size; chunks of ever new lengths would fill it.
A captured launch has the addresses of what it took, so captures take from pieces of their own that
stay where they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import torch

from chunkmesh.errors import InvariantViolated


@dataclasses.dataclass(slots=True, kw_only=True)
class Pieces:
    """Memory by name; the scratch that uses it fills it."""

    memory: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    taken: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    """What was taken last; the layers of a microbatch all take the same."""
    is_fixed: bool = False
    """Whether every piece has its final size, because its address is known elsewhere."""


class Scratch:
    """Owner of the memory; what take returned is void when its name is taken again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pieces = Pieces()

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return contiguous memory with any contents; a name always has one dtype.

        Raises:
            InvariantViolated: a fixed piece is too small.
        """
        pieces = self._pieces
        taken = pieces.taken.get(name)
        if taken is not None and taken.shape == shape:
            return taken
        size = math.prod(shape)
        memory = pieces.memory.get(name)
        if memory is None or memory.numel() < size:
            if pieces.is_fixed:
                raise InvariantViolated(f"{size} numbers of fixed scratch memory for {name}")
            pieces.memory.pop(name, None)
            memory = pieces.memory[name] = torch.empty(size, dtype=dtype, device=self.device)
        pieces.taken[name] = memory[:size].view(shape)
        return pieces.taken[name]

    @contextlib.contextmanager
    def using(self, pieces: Pieces) -> Iterator[None]:
        """Take from these pieces inside the context."""
        own, self._pieces = self._pieces, pieces
        try:
            yield
        finally:
            self._pieces = own
