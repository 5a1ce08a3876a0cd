"""How often which ids stand in a text: what penalties are computed from. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from chunkmesh.pages import TokenIds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenCounts:
    """Distinct ids and their counts; arrays are only read."""

    ids: TokenIds
    """Ascending."""
    counts: npt.NDArray[np.uint32]
    """Of each id, >= 1."""


def count_tokens(ids: TokenIds) -> TokenCounts:
    """Count at least one id; takes milliseconds for a million."""
    counts = np.bincount(ids)
    distinct = np.flatnonzero(counts)
    return TokenCounts(ids=distinct.astype(np.uint32), counts=counts[distinct].astype(np.uint32))
