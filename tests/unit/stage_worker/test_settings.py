"""What a worker's settings come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest

from chunkmesh.layers import LayerRange
from stage_worker.settings import WorkerSettings

KV_BYTES = 1000


def settings(**given: Any) -> WorkerSettings:
    """Return settings of some worker."""
    return WorkerSettings(model_path=Path("model"), layers=LayerRange(first=0, last=2), **given)


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [
        ({}, 0),
        ({"hicache_ratio": 0}, 0),
        ({"hicache_ratio": 2.5}, 2500),
        ({"hicache_ratio": 1e-9}, 0),
        ({"hicache_size": 0.5}, 500_000_000),
        ({"hicache_size": 0.5, "hicache_ratio": 2}, 500_000_000),
        ({"hicache_size": 0, "hicache_ratio": 2}, 0),
        ({"hicache_size": 1e6}, 10**15),
    ],
    ids=str,
)
def test_host_memory_is_a_share_or_a_size(given: dict[str, float], num_bytes: int) -> None:
    """GB are a thousand million bytes, and a size that is given counts, also if it is none."""
    assert settings(**given).host_bytes(KV_BYTES) == num_bytes


@pytest.mark.parametrize("name", ["hicache_ratio", "hicache_size"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e300", "64GB", ""])
def test_absurd_host_memory_is_refused(name: str, value: str) -> None:
    """Before anything is loaded, by the name of the setting."""
    with pytest.raises(pydantic.ValidationError, match=name):
        settings(**{name: value})
