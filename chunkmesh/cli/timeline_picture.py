"""Draws timelines as a picture: a panel a request, a lane a stage, chunks coloured and numbered.

All panels share the time axis, so that their lengths can be compared. Needs matplotlib, which the
extra chunkmesh[demo] brings; nothing else of the command line imports it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from chunkmesh.cli.picture_style import INK, SEND, WAIT, dress
from chunkmesh.cli.timeline import Step, Timeline, Work

_WIDTH_INCHES = 12.0
_LANE_INCHES = 0.72
_PANEL_INCHES = 0.75
_MARGIN_INCHES = 1.15
_COMPUTE_HEIGHT = 0.56
_WAIT_HEIGHT = 0.2
_SEND_HEIGHT = 0.09
_LEAST_NUMBERED_SHARE = 0.011
_LEAST_EDGED_SHARE = 0.002
_LEAST_SEEN_SHARE = 0.0005
_DECODE_SHARE = 0.14
_MAX_JOINED_CHUNKS = 64
"""Between more bars than these, lines would be all that one sees."""
_DECODE = "#8d93a6"
_CACHE = "#f2b84b"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One request and what to say of it."""

    title: str
    timeline: Timeline


def save(panels: Sequence[Panel], path: Path, *, share_time: bool = True) -> None:
    """Write the panels, at least one, as the kind of picture that the path's suffix names.

    A stage without work keeps its lane. With share_time all have the same time axis.

    Raises:
        OSError: the file cannot be written.
    """
    heights = [_PANEL_INCHES + _LANE_INCHES * panel.timeline.num_stages for panel in panels]
    figure = Figure(
        figsize=(_WIDTH_INCHES, sum(heights) + _MARGIN_INCHES),
        layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12),
    )
    FigureCanvasAgg(figure)
    shape = {"height_ratios": heights}
    axes_of_panels = figure.subplots(
        len(panels), 1, sharex=share_time, squeeze=False, gridspec_kw=shape
    )[:, 0]
    longest_s = max(panel.timeline.prefill_s for panel in panels)
    has_decode = any(panel.timeline.decode for panel in panels)
    for panel, axes in zip(panels, axes_of_panels, strict=True):
        prefill_s = (longest_s if share_time else panel.timeline.prefill_s) or 1.0
        span_s = prefill_s * (1 + (_DECODE_SHARE if has_decode else 0.0))
        _dress(axes, panel, span_s)
        _draw(axes, panel.timeline, span_s)
    axes_of_panels[-1].set_xlabel("seconds since the request arrived", color=INK)
    _legend(figure, [panel.timeline for panel in panels])
    figure.savefig(path)


def _dress(axes: Axes, panel: Panel, span_s: float) -> None:
    """Set title, axes and lanes."""
    num_stages = panel.timeline.num_stages
    axes.set_title(panel.title, loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=8)
    axes.set_xlim(0, span_s)
    axes.set_ylim(num_stages - 0.42, -0.5)
    labels = [f"stage {stage}" for stage in range(num_stages)]
    if len(panel.timeline.chunks) > 1:  # a lone chunk fills one stage after the other anyhow
        labels = [
            f"{label}\n{panel.timeline.busy_share(stage):.0%} busy"
            for stage, label in enumerate(labels)
        ]
    axes.set_yticks(range(num_stages), labels, fontsize=9.5, color=INK)
    dress(axes)
    axes.tick_params(axis="x", labelbottom=True)


def _draw(axes: Axes, timeline: Timeline, span_s: float) -> None:
    """Draw every span of one request, a lane at a time: many single bars would take minutes."""
    palette = colormaps["viridis"]
    last = max(1, len(timeline.chunks) - 1)
    _cache(axes, timeline)
    for stage in range(timeline.num_stages):
        works = [work for step in timeline.chunks for work in step.work[stage : stage + 1]]
        colours = [palette(0.12 + 0.78 * index / last) for index in range(len(works))]
        _lane(axes, works, colours, span_s)
        _decode(axes, [w for step in timeline.decode for w in step.work[stage : stage + 1]], span_s)
    for index, step in enumerate(timeline.chunks):
        for work in step.work:
            if work.end_s - work.start_s > span_s * _LEAST_NUMBERED_SHARE:
                _number(axes, work, index, dark=index / last > 0.6)
        if len(timeline.chunks) <= _MAX_JOINED_CHUNKS:
            _hops(axes, step)


def _cache(axes: Axes, timeline: Timeline) -> None:
    """Shade the time in which cached pages were looked for and loaded."""
    for stage in range(timeline.num_stages):
        axes.barh(stage, timeline.cache_s, left=0, height=_COMPUTE_HEIGHT, color=_CACHE, zorder=2.5)


def _lane(axes: Axes, works: Sequence[Work], colours: Sequence[object], span_s: float) -> None:
    """Draw one stage's waits, computes and sends; bars too narrow for it have no edge."""
    if not works:
        return
    stage = works[0].stage_index
    narrowest_s = min(work.end_s - work.start_s for work in works)
    axes.broken_barh(
        [(work.start_s, work.end_s - work.start_s) for work in works],
        _around(stage, _COMPUTE_HEIGHT),
        facecolors=colours,
        edgecolor="white",
        linewidth=0.6 if narrowest_s > span_s * _LEAST_EDGED_SHARE else 0.0,
        zorder=3,
    )
    visible_s = span_s * _LEAST_SEEN_SHARE
    waits = [(w.ready_s, w.start_s - w.ready_s) for w in works if w.start_s - w.ready_s > visible_s]
    if waits:  # hatching is slow
        axes.broken_barh(
            waits,
            _around(stage, _WAIT_HEIGHT),
            facecolor="white",
            edgecolor=WAIT,
            hatch="/////",
            linewidth=0.0,
            zorder=2,
        )
    sends = [(work.end_s, work.sent_s - work.end_s) for work in works if work.sent_s > work.end_s]
    if sends:
        below = (stage + _COMPUTE_HEIGHT / 2 + 0.02, _SEND_HEIGHT)
        axes.broken_barh(sends, below, facecolor=SEND, zorder=4)


def _decode(axes: Axes, works: Sequence[Work], span_s: float) -> None:
    """Draw one stage's decode steps that can be seen."""
    seen = [work for work in works if work.end_s <= span_s]
    if seen:
        axes.broken_barh(
            [(work.start_s, work.end_s - work.start_s) for work in seen],
            _around(seen[0].stage_index, _COMPUTE_HEIGHT),
            facecolor=_DECODE,
            zorder=3,
        )


def _around(stage: int, height: float) -> tuple[float, float]:
    """Return bottom and height of bars in the middle of a lane."""
    return (stage - height / 2, height)


def _number(axes: Axes, work: Work, index: int, *, dark: bool) -> None:
    axes.text(
        (work.start_s + work.end_s) / 2,
        work.stage_index,
        str(index),
        ha="center",
        va="center",
        fontsize=9,
        fontweight="bold",
        color=INK if dark else "white",
        zorder=5,
    )


def _hops(axes: Axes, step: Step) -> None:
    """Join a chunk's bars from stage to stage."""
    for before, after in zip(step.work, step.work[1:], strict=False):
        axes.plot(
            [before.end_s, after.start_s],
            [
                before.stage_index + _COMPUTE_HEIGHT / 2,
                after.stage_index - _COMPUTE_HEIGHT / 2,
            ],
            color=_DECODE,
            linewidth=0.8,
            zorder=1,
        )


def _legend(figure: Figure, timelines: Sequence[Timeline]) -> None:
    """Explain what can be seen."""
    palette = colormaps["viridis"]
    handles = [
        Patch(color=palette(0.45), label="computes a chunk (number)"),
        Patch(facecolor="white", edgecolor=WAIT, hatch="/////", label="waits for input"),
        Patch(color=SEND, label="sends to the next stage"),
    ]
    if any(timeline.cached_tokens for timeline in timelines):
        handles.append(Patch(color=_CACHE, label="loads cached pages"))
    if any(timeline.decode for timeline in timelines):
        handles.append(Patch(color=_DECODE, label="decode step"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
    )
