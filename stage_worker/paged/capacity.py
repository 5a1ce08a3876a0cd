"""How many tokens of keys and values fit in what is left of a device's memory. Pure."""

from __future__ import annotations

import dataclasses

from chunkmesh.errors import ConfigError

_PAGE_TOKENS = 128
"""Capacity is of whole pages of this size; the scheduler may use another."""
_LEAST_PAGES = 16
"""With fewer no prompt worth a GPU fits."""
_GIB = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Memory of a device with weights, scratch memory and replays on it, in bytes."""

    free_bytes: int
    """That nothing has taken yet."""
    link_bytes: int
    """That links will take for activations."""
    token_bytes: int
    """Keys and values of one token in all layers of the stage."""


def capacity_tokens(remaining: Remaining, fraction: float) -> int:
    """Return the capacity of a pool that takes a fraction of what remains.

    The pool has one more page, for filler.

    Raises:
        ConfigError: that is next to nothing.
    """
    usable_bytes = int(max(remaining.free_bytes - remaining.link_bytes, 0) * fraction)
    page_bytes = _PAGE_TOKENS * remaining.token_bytes
    num_pages = usable_bytes // page_bytes - 1
    if num_pages < _LEAST_PAGES:
        raise ConfigError(
            f"--mem-fraction {fraction}: {remaining.free_bytes / _GIB:.2f} GiB of the GPU are free "
            f"behind weights and buffers, {remaining.link_bytes / _GIB:.2f} GiB of it go to links; "
            f"that is room for {max(num_pages, 0)} pages of {_PAGE_TOKENS} tokens "
            f"({page_bytes / _GIB:.4f} GiB each), {_LEAST_PAGES} are needed"
        )
    return num_pages * _PAGE_TOKENS
