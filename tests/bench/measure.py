"""How benches measure: interleaved rounds, their spread, and one table at the end."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Repeated measurements of one thing, in the order taken."""

    name: str
    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """Middle value."""
        return statistics.median(self.values)

    def best(self, *, least: bool) -> float:
        """Return the least or the greatest value."""
        return min(self.values) if least else max(self.values)

    @property
    def spread(self) -> float:
        """Greatest over least, minus 1."""
        return max(self.values) / min(self.values) - 1


def interleave(
    rounds: int, work: dict[str, Callable[[], float]], *, unit: str
) -> dict[str, Sample]:
    """Measure each kind of work once a round, so that the machine's moods hit all alike."""
    values: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            values[name].append(run())
    return {
        name: Sample(name=name, values=tuple(taken), unit=unit) for name, taken in values.items()
    }


def pair_ratios(over: Sample, under: Sample) -> Sample:
    """Return over / under, round by round."""
    ratios = tuple(a / b for a, b in zip(over.values, under.values, strict=True))
    return Sample(name=f"{over.name} / {under.name}", values=ratios, unit="x")


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |"]
    lines.append("|" + "---|" * len(header))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(sample: Sample) -> str:
    """Write median, range and count of a sample."""
    low, high = min(sample.values), max(sample.values)
    number = len(sample.values)
    return f"{sample.median:.2f} {sample.unit} ({low:.2f}-{high:.2f}, n={number})"
