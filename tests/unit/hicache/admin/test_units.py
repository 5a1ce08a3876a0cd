"""Sizes and durations as admins type and read them."""

from __future__ import annotations

import pytest

from chunkmesh.errors import ConfigError
from hicache.admin.units import duration_text, parse_duration_ms, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4096", 4096),
        ("1B", 1),
        ("10GiB", 10 * 2**30),
        ("512MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5KiB", 1536),
        (" 3 kb ", 3000),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    """Binary and decimal units mean what they say: a quota must not be off by 7 percent."""
    assert num_bytes == parse_size(text)


@pytest.mark.parametrize("text", ["", "much", "-1", "0", "0.1", "1e9", "10GiBs", "9999999TiB"])
def test_no_sizes(text: str) -> None:
    """The text is named; zero is no quota."""
    with pytest.raises(ConfigError, match=f"'{text}'"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_durations(text: str, duration_ms: int) -> None:
    """A duration without a unit would be read wrongly by half of all people."""
    assert duration_ms == parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "5", "soon", "0s", "-2h", "2 weeks", "100000d"])
def test_no_durations(text: str) -> None:
    """The text is named."""
    with pytest.raises(ConfigError, match=f"'{text}'"):
        parse_duration_ms(text)


def test_texts() -> None:
    """The largest unit of which there is one."""
    sizes = [size_text(size) for size in (0, 1, 1023, 1024, 1536, 5 * 2**30, 2**52)]
    assert ["0 B", "1 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "4096.0 TiB"] == sizes
    times = [duration_text(time) for time in (0, 999, 1000, 90_000, 7_200_000, 86_400_000)]
    assert ["0ms", "999ms", "1s", "1.5m", "2h", "1d"] == times
