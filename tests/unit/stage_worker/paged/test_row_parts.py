"""Products of any number of rows use kernels that the warm-up has met."""

from __future__ import annotations

import pytest

from stage_worker.paged.row_parts import WHOLE_ROWS, row_counts, row_parts


@pytest.mark.parametrize("num_rows", [1, 64, 511, 512, 513, 1024, 2048 + 16, 8448])
def test_parts_are_all_rows_once(num_rows: int) -> None:
    """In order, and none is empty: DeepGEMM wants at least a row."""
    parts = row_parts(num_rows)
    assert [row for part in parts for row in range(num_rows)[part]] == list(range(num_rows))
    assert all(part.stop > part.start for part in parts)


def test_few_rows_and_good_chunks_are_one_product() -> None:
    """What is planned on purpose pays for no second launch."""
    assert all(len(row_parts(rows)) == 1 for rows in (1, 300, WHOLE_ROWS, 4 * WHOLE_ROWS))
    assert row_parts(2 * WHOLE_ROWS + 16) == (slice(0, 1024), slice(1024, 1040))


def test_the_warm_up_meets_every_kernel() -> None:
    """Up to its largest batch: whole multiples, and others up to the tile that they end in."""
    warm = {
        -(-(part.stop - part.start) // 64) for rows in row_counts(4096) for part in row_parts(rows)
    }
    for num_rows in range(64, 4097):
        for part in row_parts(num_rows):
            assert -(-(part.stop - part.start) // 64) in warm


def test_a_small_gpu_has_few() -> None:
    """None is above its largest batch."""
    assert row_counts(200) == (64, 128, 192)
