"""Communication volumes and bubbles, worked out by hand."""

from __future__ import annotations

import pytest

from scheduler.planning.communication import Communication, equal_bubble_ratio
from scheduler.planning.known_shapes import known_shape


def test_volumes_of_a_known_model() -> None:
    """Qwen3-8B: H 4096, L 36, 2 H_kv 2048, two bytes, four devices, 128K tokens."""
    shape = known_shape("qwen3-8b")
    assert shape is not None
    moved = Communication.of(shape, prompt_tokens=131_072, num_devices=4, element_bytes=2)
    assert 2 * 3 * (131_072 * 4096 // 4) * 2 * 36 * 2 == moved.tensor_bytes
    assert 4 * 131_072 * 4096 * 36 * 2 == moved.tensor_bytes_large
    assert 3 * (131_072 // 4 * 2048) * 36 * 2 == moved.context_bytes
    assert 131_072 * 4096 * 3 * 2 == moved.pipeline_bytes
    assert 131_072 * 4096 * 2 == moved.link_bytes


def test_one_device_moves_nothing() -> None:
    """There is nobody to send to."""
    shape = known_shape("deepseek-v3.1")
    assert shape is not None
    moved = Communication.of(shape, prompt_tokens=1000, num_devices=1, element_bytes=1)
    assert (moved.tensor_bytes, moved.context_bytes, moved.pipeline_bytes, moved.link_bytes) == (
        (0,) * 4
    )


@pytest.mark.parametrize(
    ("num_stages", "num_microbatches", "ratio"), [(1, 7, 0.0), (4, 1, 0.75), (4, 29, 3 / 32)]
)
def test_bubble_of_equal_microbatches(num_stages: int, num_microbatches: int, ratio: float) -> None:
    """(P - 1) / (P - 1 + M)."""
    assert pytest.approx(ratio) == equal_bubble_ratio(num_stages, num_microbatches)
