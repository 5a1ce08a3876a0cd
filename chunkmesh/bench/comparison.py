"""Holds two results against each other, if both are of the same workload. Pure.

A ratio means little without its spread: where each side has several runs a difference counts only
if no run of one side lies among those of the other.
"""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from chunkmesh.bench.result import BenchResult
from chunkmesh.bench.targets import METRICS
from chunkmesh.errors import ConfigError

_RATES = (
    "request_throughput",
    "request_goodput",
    "input_throughput",
    "output_throughput",
    "total_token_throughput",
)


class Verdict(enum.StrEnum):
    """What a row says of the second result."""

    BETTER = "better"
    WORSE = "worse"
    WITHIN_SPREAD = "within the spread"
    ONE_RUN = "spread unknown"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One figure of both."""

    name: str
    base: tuple[float, ...]
    new: tuple[float, ...]
    """Of each run, at least one."""
    is_rate: bool
    """Whether more is better."""

    @property
    def ratio(self) -> float | None:
        """The new median over the base's; None if that is 0."""
        base = statistics.median(self.base)
        return statistics.median(self.new) / base if base else None

    @property
    def verdict(self) -> Verdict:
        """Which is better, if the runs can tell."""
        if min(len(self.base), len(self.new)) < 2:
            return Verdict.ONE_RUN
        if min(self.new) > max(self.base):
            return Verdict.BETTER if self.is_rate else Verdict.WORSE
        if max(self.new) < min(self.base):
            return Verdict.WORSE if self.is_rate else Verdict.BETTER
        return Verdict.WITHIN_SPREAD


def check_workloads(base: BenchResult, new: BenchResult) -> None:
    """Refuse results of unlike workloads.

    Raises:
        ConfigError: names every difference.
    """
    found = differences(base.workload, new.workload)
    if found:
        raise ConfigError(
            f"the workloads differ: {'; '.join(found)}; --allow-different compares them"
            " all the same"
        )


def differences(base: Mapping[str, Any], new: Mapping[str, Any], *, prefix: str = "") -> list[str]:
    """Return each value that differs, with its name and both values."""
    found = []
    for name in dict.fromkeys([*base, *new]):
        old, other = base.get(name), new.get(name)
        if isinstance(old, dict) and isinstance(other, dict):
            found += differences(old, other, prefix=f"{prefix}{name}.")
        elif old != other:
            found.append(f"{prefix}{name} is {old}, then {other}")
    return found


def compare(base: BenchResult, new: BenchResult) -> tuple[ComparedFigure, ...]:
    """Return the figures that both have: rates first, then latencies.

    Goodput is left out where its targets differ.
    """
    names = [
        name
        for name in _RATES
        if name != "request_goodput" or dict(base.goodput_ms) == dict(new.goodput_ms)
    ]
    rows = [_figure(name, base, new, is_rate=True) for name in names]
    rows += [_figure(name, base, new, is_rate=False) for name in _latencies(base.runs[0].figures)]
    return tuple(row for row in rows if row.base and row.new)


def cautions(name: str, result: BenchResult) -> list[str]:
    """Return why a result's figures may not be what they seem."""
    found = []
    for index, run in enumerate(result.runs, 1):
        place = f"{name}, run {index}" if len(result.runs) > 1 else name
        if run.end != "complete":
            found.append(f"{place}: cut short ({run.end})")
        if run.failures:
            counts = ", ".join(f"{each['count']} {status}" for status, each in run.failures.items())
            found.append(f"{place}: requests failed: {counts}")
        figures = run.figures
        warning = run.lag.warning(
            median_ttft_ms=figures.get("median_ttft_ms"), median_itl_ms=figures.get("median_itl_ms")
        )
        if warning:
            found.append(f"{place}: {warning}")
    return found


def _latencies(names: Sequence[str] | Mapping[str, float]) -> list[str]:
    """Return mean, median and percentiles of each latency, as they stand in a run."""
    return [
        name
        for metric in METRICS
        for name in names
        if name.endswith(f"_{metric}_ms") and not name.startswith("std_")
    ]


def _figure(name: str, base: BenchResult, new: BenchResult, *, is_rate: bool) -> ComparedFigure:
    return ComparedFigure(
        name=name, base=tuple(base.values(name)), new=tuple(new.values(name)), is_rate=is_rate
    )
