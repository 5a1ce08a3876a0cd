"""How rows of an eight-bit product are cut into parts, so that few kernels are compiled. Pure.

DeepGEMM compiles a kernel, for 3 to 7 s, for each number of multiprocessors that a product can do
with, and that changes with every few rows: measured on an H200, a matrix of 4096 outputs needs one
for each 64 rows. So what makes whole multiples of WHOLE_ROWS is multiplied apart from the rest, and
a stage that has warmed up with row_counts has met all kernels that its microbatches will need.
"""

from __future__ import annotations

WHOLE_ROWS = 512
"""Rows by which 4096 outputs fill 128 of an H200's 132 multiprocessors, in tiles of 128 x 128."""
_TILE_ROWS = 64


def row_parts(num_rows: int) -> tuple[slice, ...]:
    """Return the parts of num_rows >= 1 rows: what is whole, and the rest."""
    whole = num_rows // WHOLE_ROWS * WHOLE_ROWS
    parts = (slice(0, whole), slice(whole, num_rows))
    return tuple(part for part in parts if part.start < part.stop)


def row_counts(most_rows: int) -> tuple[int, ...]:
    """Return how many rows there can be, as far as kernels differ, up to most_rows; ascending."""
    tiles = range(_TILE_ROWS, min(WHOLE_ROWS, most_rows + 1), _TILE_ROWS)
    return (*tiles, *range(WHOLE_ROWS, most_rows + 1, WHOLE_ROWS))
