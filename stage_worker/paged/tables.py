"""Page tables of the requests on a stage, as arrays. Pure.

Owned by a paged stage; the CPU's stage joins pages to runs instead (page_table.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chunkmesh.errors import InvariantViolated

Ids = npt.NDArray[np.int32]


class PageArrays:
    """Owner of the page ids of all rows, in the order of their positions."""

    def __init__(self, *, num_pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self._num_pages = num_pages
        self._rows: dict[int, Ids] = {}

    def grow(self, row: int, new_page_ids: Sequence[int], num_tokens: int) -> Ids:
        """Append pages to a row, which begins with its first microbatch; return all of its pages.

        num_tokens is how many positions they must hold.

        Raises:
            InvariantViolated: a page id outside the pool, or positions without a page.
        """
        added = np.array(new_page_ids, dtype=np.int64)
        if added.size and not (added.min() >= 0 and added.max() < self._num_pages):
            raise InvariantViolated(
                f"pages {added.min()} to {added.max()} of row {row}; the pool has {self._num_pages}"
            )
        page_ids = self._rows.get(row)
        if page_ids is None or added.size:
            known = np.empty(0, dtype=np.int32) if page_ids is None else page_ids
            page_ids = self._rows[row] = np.concatenate((known, added.astype(np.int32)))
        if num_tokens > len(page_ids) * self.page_tokens:
            raise InvariantViolated(
                f"position {num_tokens - 1} lies behind {len(page_ids)} pages "
                f"of {self.page_tokens} tokens"
            )
        return page_ids

    def release(self, row: int) -> None:
        """Forget a row; unknown rows are fine, a release may follow an abort before its start."""
        self._rows.pop(row, None)
