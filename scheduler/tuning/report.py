"""What tuning found, as a table with the flags to set, and as an object for programs."""

from __future__ import annotations

import dataclasses
import json
import statistics

from rich.console import Console
from rich.table import Table

from chunkmesh.cli.output import print_table
from chunkmesh.cli.partition import inclusive
from scheduler.tuning.advice import PartitionAdvice
from scheduler.tuning.candidates import TuneLimits, largest_size
from scheduler.tuning.race import DROP_RATIO, TIE_RATIO, Standing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """All that was found."""

    limits: TuneLimits
    standings: tuple[Standing, ...]
    """At least one."""
    winner: Standing
    tied: tuple[Standing, ...]
    """Those that cannot be told apart from it, itself among them."""
    dropped: tuple[Standing, ...]
    """Those that were not measured again."""
    partition: PartitionAdvice | None
    is_cut_short: bool
    latency_reason: str
    """Why dynamic chunks were not tried; empty if they were."""


def print_tuned(console: Console, tuned: Tuned) -> None:
    """Print table, notes and flags."""
    print_table(console, _table(tuned))
    for line in [*_notes(tuned), "", *_flags(tuned)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def as_json(tuned: Tuned) -> str:
    """Return one object in one line."""
    advice = tuned.partition
    fields = {
        "prompt_tokens": tuned.limits.prompt_tokens,
        "measured": [_fields(each) for each in tuned.standings],
        "winner": tuned.winner.candidate.name,
        "scheduler_flags": list(tuned.winner.candidate.flags),
        "layers": None if advice is None else [inclusive(each) for each in advice.ranges],
        "is_cut_short": tuned.is_cut_short,
    }
    return json.dumps(fields)


def _fields(standing: Standing) -> dict[str, object]:
    return {
        "name": standing.candidate.name,
        "strategy": standing.candidate.strategy,
        "num_chunks": standing.runs[-1].num_chunks,
        "ttft_ms": [round(run.ttft_ms, 1) for run in standing.runs],
        "median_ttft_ms": round(standing.median_ms, 1),
        "bubble_ratio": round(_bubble(standing), 4),
    }


def _bubble(standing: Standing) -> float:
    return statistics.median(run.bubble_ratio for run in standing.runs)


def _table(tuned: Tuned) -> Table:
    """Return one row a candidate, the fastest first."""
    table = Table(
        "chunks", title=f"{tuned.limits.prompt_tokens} tokens, measured", title_justify="left"
    )
    for column in ("number", "runs", "TTFT median ms", "best", "worst", "bubble", "of winner"):
        table.add_column(column, justify="right")
    for each in sorted(tuned.standings, key=lambda standing: standing.median_ms):
        is_winner = each.candidate == tuned.winner.candidate
        table.add_row(
            each.candidate.name,
            str(each.runs[-1].num_chunks),
            str(len(each.runs)),
            f"{each.median_ms:.0f}",
            f"{each.best_ms:.0f}",
            f"{max(run.ttft_ms for run in each.runs):.0f}",
            f"{_bubble(each):.1%}",
            f"{each.median_ms / tuned.winner.median_ms:.2f}x",
            style="bold" if is_winner else None,
        )
    return table


def _notes(tuned: Tuned) -> list[str]:
    """Say what the table does not tell."""
    notes = []
    if tuned.is_cut_short:
        notes.append("time was out before all were measured: a longer --budget tells more")
    lucky = [
        each.candidate.name for each in tuned.dropped if each.median_ms < tuned.winner.median_ms
    ]
    if lucky:
        notes.append(
            f"best time more than {DROP_RATIO - 1:.0%} behind the best one, so not measured again,"
            f" whatever the median of so few runs: {', '.join(lucky)}"
        )
    if tuned.latency_reason:
        notes.append(f"dynamic chunks were not tried: {tuned.latency_reason}")
    most = largest_size(tuned.limits)
    if max(tuned.winner.candidate.chunk_tokens, default=0) == most < tuned.limits.prompt_tokens:
        notes.append(
            f"{most} tokens is the largest chunk of this mesh, and the best: start it with a larger"
            " --chunked-prefill-size and tune again"
        )
    tied = [each.candidate.name for each in tuned.tied if each.candidate != tuned.winner.candidate]
    if tied:
        notes.append(f"as fast within {TIE_RATIO - 1:.0%}: {', '.join(tied)}")
    return notes


def _flags(tuned: Tuned) -> list[str]:
    """Return what to set."""
    lines = [f"chunkmesh-scheduler {' '.join(tuned.winner.candidate.flags)}"]
    advice = tuned.partition
    if advice is None:
        return [*lines, "layers: no other split would be faster by 2 % or more"]
    lines += [f"stage-worker --layers {inclusive(each)}" for each in advice.ranges]
    lines.append(
        f"(split computed, not measured: the slowest stage would take {advice.expected_ms:.0f} ms"
        f" of each prompt instead of {advice.slowest_ms:.0f})"
    )
    return lines
