"""Operations of a layer: what is set against ceilings must be counted right."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_worker.model_config import read_model_config
from tests.bench.layer_operations import layer_operations
from tests.bench.shape_folder import write_shape


def test_a_dense_layer(tmp_path: Path) -> None:
    """Products by every weight, attention by half of a chunk's own square and all before it."""
    write_shape(tmp_path, "qwen3-8b")
    found = layer_operations(read_model_config(tmp_path), 1, 2048, 4096)
    weights = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288
    assert found.products == 2 * 2048 * weights
    pairs = 2048 * 4096 + 2048 * 2049 / 2
    assert found.attention == 4 * pairs * 32 * 128


def test_experts_count_as_far_as_rows_use_them(tmp_path: Path) -> None:
    """Of 8 experts two are used."""
    write_shape(tmp_path, "small-moe")
    found = layer_operations(read_model_config(tmp_path), 1, 10, 0)
    attention = 256 * (4 + 2 * 2) * 128 + 4 * 128 * 256
    assert found.products == pytest.approx(2 * 10 * (attention + 2 * 3 * 256 * 128))
