"""Identity of weights: equal digests mean that two workers hold the same tensors.

Large tensors are sampled, which tells models and fine-tunings apart at the cost of a few reads; it
is no protection against somebody who alters a file on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import torch
import xxhash

_WHOLE_BYTES = 1 << 20
"""Tensors up to this size are read whole."""
_NUM_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


class WeightDigest:
    """Running xxh3-128 over name, element type, shape and bytes of tensors."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take in a contiguous tensor, as the checkpoint holds it."""
        header = f"{name}|{tensor.dtype}|{tuple(tensor.shape)}".encode()
        self._hash.update(struct.pack("<I", len(header)) + header)
        flat = tensor.reshape(-1).view(torch.uint8)
        for begin, end in _sampled(flat.numel()):
            self._hash.update(flat[begin:end].cpu().numpy().data)

    def digest(self) -> bytes:
        """Return the 16 bytes so far."""
        result: bytes = self._hash.digest()
        return result


def _sampled(num_bytes: int) -> Iterable[tuple[int, int]]:
    """Return evenly spaced ranges, the first and the last bytes among them."""
    if num_bytes <= _WHOLE_BYTES:
        return ((0, num_bytes),)
    step = (num_bytes - _SAMPLE_BYTES) / (_NUM_SAMPLES - 1)
    begins = (int(index * step) for index in range(_NUM_SAMPLES))
    return tuple((begin, begin + _SAMPLE_BYTES) for begin in begins)
