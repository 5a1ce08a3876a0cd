"""Draws a timeline as plain text: one lane a stage, one column a slice of time. Pure.

A lane shows the number of the chunk in compute (its last character: 0-9, then a-z), `.` while the
stage waits for it, `=` while cached pages are looked for and loaded, `-` for a decode step, a blank
when it has nothing to do.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence

from chunkmesh.cli.timeline import Step, Timeline, Work

_MARKS = string.digits + string.ascii_lowercase
_TICK_COLUMNS = 12


def draw(timeline: Timeline, width: int = 100) -> str:
    """Return axis, lanes and a table of the chunks; width is that of the axis and lanes."""
    if not timeline.chunks:
        return "no timeline"
    return "\n".join([draw_lanes(timeline, width), "", *_chunk_rows(timeline)])


def draw_lanes(timeline: Timeline, width: int = 100) -> str:
    """Return axis, lanes and their legend; there is at least one chunk."""
    label = f"stage {timeline.num_stages - 1} "
    columns = max(20, width - len(label))
    column_s = timeline.prefill_s / columns
    lines = [" " * len(label) + _axis(columns, column_s)]
    for stage_index in range(timeline.num_stages):
        lane = _lane(timeline, stage_index, columns, column_s)
        lines.append(f"stage {stage_index}".ljust(len(label)) + lane.rstrip())
    legend = (
        "0-9, a-z: chunk in compute   . waiting for it   = loading cached pages   - decode step"
    )
    return "\n".join([*lines, " " * len(label) + legend])


def _axis(columns: int, column_s: float) -> str:
    """Return tick labels: seconds since the request arrived."""
    axis = ""
    for column in range(0, columns - _TICK_COLUMNS // 2, _TICK_COLUMNS):
        axis = axis.ljust(column) + f"|{column * column_s:.2f} s"
    return axis[:columns]


def _lane(timeline: Timeline, stage_index: int, columns: int, column_s: float) -> str:
    """Mark each column with what fills most of it."""
    spans = list(_spans(timeline, stage_index))
    lane = ""
    for column in range(columns):
        first_s, last_s = column * column_s, (column + 1) * column_s
        shares: dict[str, float] = {}
        for start_s, end_s, mark in spans:
            overlap_s = min(end_s, last_s) - max(start_s, first_s)
            if overlap_s > 0:
                shares[mark] = shares.get(mark, 0.0) + overlap_s
        shares[" "] = column_s - sum(shares.values())
        lane += max(shares, key=lambda mark: shares[mark])
    return lane


def _spans(timeline: Timeline, stage_index: int) -> Iterator[tuple[float, float, str]]:
    """Yield (start, end, mark) of everything a stage does; marks of chunks are by number."""
    steps: Sequence[tuple[str, Step]] = [
        *((_MARKS[index % len(_MARKS)], step) for index, step in enumerate(timeline.chunks)),
        *(("-", step) for step in timeline.decode),
    ]
    yield 0.0, timeline.cache_s, "="
    for mark, step in steps:
        for work in step.work:
            if work.stage_index == stage_index:
                yield work.ready_s, work.start_s, "."
                yield work.start_s, work.end_s, mark


def _chunk_rows(timeline: Timeline) -> list[str]:
    """Return one row a chunk, and the busy share of each stage."""
    header = "chunk  positions    tokens"
    stages = range(timeline.num_stages)
    has_model = any(work.predicted_s is not None for work in timeline.works(timeline.chunks))
    times = "wait / compute / expected / send ms" if has_model else "wait / compute / send ms"
    width = len(f"stage 0: {times}")
    rows = [header + "".join(f"  {f'stage {stage}: {times}':>{width}}" for stage in stages)]
    for index, step in enumerate(timeline.chunks):
        row = f"{index:>5}  {f'{step.start}-{step.end - 1}':<11}  {step.num_tokens:>6}"
        for work in step.work:
            row += f"  {_cell(work, has_model=has_model):>{width}}"
        rows.append(row)
    if len(timeline.chunks) == 1:
        return rows
    shares = ", ".join(f"stage {stage} {timeline.busy_share(stage):.0%}" for stage in stages)
    return [*rows, f"computing during prefill: {shares}"]


def _cell(work: Work, *, has_model: bool) -> str:
    """Return the times of one stage in milliseconds."""
    times_s = [work.start_s - work.ready_s, work.end_s - work.start_s, work.sent_s - work.end_s]
    cells = [f"{seconds * 1000:7.1f}" for seconds in times_s]
    if has_model:
        expected_s = work.predicted_s
        cells.insert(2, f"{'-' if expected_s is None else f'{expected_s * 1000:.1f}':>7}")
    return " / ".join(cells)
