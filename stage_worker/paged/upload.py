"""Carries a microbatch's small arrays to the device in one copy that nobody waits for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16


class Upload:
    """Collects arrays; send makes tensors of them."""

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[np.generic]] = []

    def add(self, array: npt.NDArray[np.generic]) -> int:
        """Take an array; return its place in what send returns."""
        self._arrays.append(np.ascontiguousarray(array))
        return len(self._arrays) - 1

    def send(self, device: torch.device) -> list[torch.Tensor]:
        """Return the arrays as tensors on a device, ready in the order of its current stream."""
        begins = []
        size = 0
        for array in self._arrays:
            begins.append(size)
            size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        # Pinned memory is given back to torch, which keeps it until the copy has been made.
        host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        host_bytes = host.numpy()
        for begin, array in zip(begins, self._arrays, strict=True):
            host_bytes[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        there = host.to(device, non_blocking=True)
        return [
            there[begin : begin + array.nbytes]
            .view(torch.from_numpy(array).dtype)
            .view(array.shape)
            for begin, array in zip(begins, self._arrays, strict=True)
        ]
