"""Numbers of tokens, ranges and sweeps as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.errors import ConfigError
from scheduler.planning.options import check_picture, parse_sweep, parse_tokens
from scheduler.planning.token_text import parse_range, short_count


def test_units_are_powers_of_two() -> None:
    """As the context lengths of models: 128K is 131072, 1M is 1048576."""
    assert parse_tokens("4096,128K,1m, 1M,1000") == (4096, 131_072, 1_048_576, 1000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no number"),
        ("128k,,1", "'' is no number"),
        ("1.5K", "'1.5K' is no number"),
        ("0", "0 is 0, must be from 1"),
        ("17M", "17M is 17825792, must be from 1 to 16777216"),
        ("-5", "'-5' is no number"),
    ],
)
def test_wrong_lengths_are_named(text: str, words: str) -> None:
    """The flag, the value and the limit."""
    with pytest.raises(ConfigError, match=f"--tokens: {words}"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [("1..8", (1, 2, 4, 8)), ("3..10", (3, 6, 10)), ("5", (5,)), ("4K..16K", (4096, 8192, 16384))],
)
def test_ranges_double(text: str, values: tuple[int, ...]) -> None:
    """The last is always in, so that nobody asks for 36 stages and sees 32."""
    assert values == parse_range(text, flag="--sweep", most=1 << 20)


def test_a_sweep_needs_one_range() -> None:
    """What is not swept is what the other flags say."""
    assert parse_sweep("stages=2..4").prompt_tokens is None
    assert parse_sweep("tokens=1K,stages=2..4").num_stages == (2, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layers=1..2", "'layers=1..2' is not expected"),
        ("stages=1..2,stages=4", "'stages=4' is not expected"),
        ("stages=8..2", "goes down, from 8 to 2"),
        ("stages=1..2000", "2000 is 2000, must be from 1 to 1024"),
    ],
)
def test_wrong_sweeps_are_named(text: str, words: str) -> None:
    """Each says what would be right."""
    with pytest.raises(ConfigError, match=words):
        parse_sweep(text)


def test_counts_are_written_short() -> None:
    """Tables read better so; nothing is rounded."""
    assert [short_count(n) for n in (131_072, 1_048_576, 4097)] == ["128K", "1M", "4097"]


def test_pictures_are_checked_before_any_work(tmp_path: Path) -> None:
    """A minute of planning must not end at a typo."""
    with pytest.raises(ConfigError, match=r"must end in .png or .svg"):
        check_picture(tmp_path / "plan.pdf")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_picture(tmp_path / "none" / "plan.png")
