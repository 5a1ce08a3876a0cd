"""EngineConfig: what it refuses and what follows from it."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.errors import ConfigError
from scheduler.engine_config import EngineConfig

_CONFIG = EngineConfig(
    page_tokens=16,
    chunked_prefill_tokens=64,
    max_running_requests=8,
    max_queued_requests=8,
    load_timeout_s=1.0,
    max_outstanding_stores=4,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page_tokens", 0),
        ("chunked_prefill_tokens", 0),
        ("max_running_requests", 0),
        ("max_queued_requests", 0),
        ("load_timeout_s", 0.0),
        ("load_timeout_s", float("nan")),
        ("max_outstanding_stores", -1),
        ("decode_groups", 0),
        ("max_microbatch_requests", 0),
        ("context_tokens", 0),
        ("dynamic_smooth_factor", 1.5),
        ("dynamic_smooth_factor", float("nan")),
        ("max_chunk_ms", 0.0),
        ("max_chunk_ms", float("inf")),
    ],
)
def test_value_out_of_range_is_named(name: str, value: float) -> None:
    """A limit of zero would let every request wait for ever."""
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        dataclasses.replace(_CONFIG, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("depth", "window"), [(0, 3), (2, 5), (-2, 1), (-9, 1)])
def test_window(depth: int, window: int) -> None:
    """num_stages + 1 + depth, and never less than 1."""
    config = dataclasses.replace(_CONFIG, pp_async_batch_depth=depth)
    assert config.window(2) == window


def test_stages_need_room_for_chunks_and_decode_rows() -> None:
    """Decode rows come on top of the chunk budget."""
    assert _CONFIG.max_microbatch_tokens == 72


@pytest.mark.parametrize(
    ("most", "groups", "expected"), [(None, None, 2), (4, None, 2), (3, None, 3), (1, 5, 8)]
)
def test_no_decode_group_outgrows_a_microbatch(
    most: int | None, groups: int | None, expected: int
) -> None:
    """8 rows in microbatches of at most 3 need 3 groups, however many stages there are."""
    config = dataclasses.replace(_CONFIG, max_microbatch_requests=most, decode_groups=groups)
    assert config.num_decode_groups(2) == expected
