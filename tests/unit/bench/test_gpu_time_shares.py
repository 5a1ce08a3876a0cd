"""The sums of the time shares: what a loss is called must be what is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_worker.model_config import read_model_config
from tests.bench.gpu_time_shares import ideal_ms, losses, summed
from tests.bench.kernel_shares import Shares
from tests.bench.shape_folder import write_shape


def test_the_ideal_of_a_chunk(tmp_path: Path) -> None:
    """2048 tokens of 35 layers at 700 TFLOP/s, and their attention behind 63488 at 630."""
    write_shape(tmp_path, "qwen3-8b")
    products_ms, attention_ms = ideal_ms(read_model_config(tmp_path), 2048, 63488, (700.0, 630.0))
    weights = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288
    assert products_ms == pytest.approx(35 * 2 * 2048 * weights / 700e9)
    pairs = 2048 * 63488 + 2048 * 2049 / 2
    assert attention_ms == pytest.approx(35 * 4 * pairs * 4096 / 630e9)


def test_a_prompt_is_the_sum_of_its_chunks() -> None:
    """Attention grows with the prefix, products do not."""
    points = [
        Shares(
            prefix=prefix,
            wall_ms=11 + prefix / 100,
            by_kind={"products": 10.0, "attention": prefix / 100, "other": 1.0, "copies": 0.0},
            idle_ms=0.0,
            host_ms=5.0,
            overlap_ms=5.0,
            waits=0,
            allocations=0,
        )
        for prefix in (150.0, 350.0)
    ]
    total = summed(points, range(0, 500, 100))
    assert total["wall"] == pytest.approx(5 * 11 + 10)
    assert total["attention"] == pytest.approx(10)
    assert (total["products"], total["idle"], total["host"]) == pytest.approx((50, 0, 25))


def test_the_largest_loss_comes_first() -> None:
    """It is the one to mend."""
    total = {"products": 50.0, "attention": 70.0, "other": 5.0, "copies": 0.0, "idle": 12.0}
    found = losses(total, (45.0, 60.0))
    assert next(iter(found)) == "the GPU idle"
    assert found["attention below its ceiling"] == 10.0
