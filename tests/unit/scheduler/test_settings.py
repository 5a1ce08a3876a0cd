"""What the scheduler can be told about chunks."""

from __future__ import annotations

import pytest

from chunkmesh.config import load
from chunkmesh.errors import ConfigError
from scheduler.settings import SchedulerSettings


def _strategy(*flags: str) -> str:
    """Return how prompts are to be cut."""
    loaded = load(SchedulerSettings, ["--model-path", "m", *flags], {})
    return loaded.settings.wanted_strategy


@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        ((), "optimal"),
        (("--chunk-strategy", "fixed"), "fixed"),
        (("--enable-dynamic-chunking",), "dynamic"),
        (("--enable-dynamic-chunking", "--chunk-strategy", "dynamic"), "dynamic"),
    ],
)
def test_strategy(flags: tuple[str, ...], strategy: str) -> None:
    """The flag of SGLang's users is another word for the same."""
    assert _strategy(*flags) == strategy


@pytest.mark.parametrize(
    ("flags", "expected"),
    [((), False), (("--chunk-strategy", "optimal"), True), (("--enable-dynamic-chunking",), True)],
)
def test_named_strategy_is_told_from_the_default(flags: tuple[str, ...], *, expected: bool) -> None:
    """Who names one must hear of it each time that it cannot be had."""
    loaded = load(SchedulerSettings, ["--model-path", "m", *flags], {})
    assert expected == loaded.settings.names_strategy


def test_contradiction_is_refused() -> None:
    """One of the two would be ignored in silence."""
    with pytest.raises(ConfigError, match="contradicts --chunk-strategy fixed"):
        _strategy("--enable-dynamic-chunking", "--chunk-strategy", "fixed")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--chunk-strategy", "clever"),
        ("--dynamic-chunking-smooth-factor", "1.1"),
        ("--max-chunk-ms", "-1"),
        ("--max-chunk-ms", "inf"),
        ("--pp-max-micro-batch-size", "0"),
    ],
)
def test_value_out_of_range_is_named(flag: str, value: str) -> None:
    """With its flag, so that it can be found."""
    with pytest.raises(ConfigError, match=f"^{flag} {value}"):
        _strategy(flag, value)


def test_a_limit_of_users_needs_somebody_who_is_none() -> None:
    """It would be ignored in silence where everybody is an operator."""
    with pytest.raises(ConfigError, match="--max-user-priority 5 needs --api-key-file"):
        _strategy("--max-user-priority", "5")
    _strategy("--max-user-priority", "5", "--admin-api-key-file", "k")


@pytest.mark.parametrize("value", ["-1", "101"])
def test_a_limit_below_what_everybody_asks_for_is_none(value: str) -> None:
    """Requests without a priority would be refused."""
    with pytest.raises(ConfigError, match=f"^--max-user-priority {value}"):
        _strategy("--api-key-file", "k", "--max-user-priority", value)
