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

from chunkmesh.cli.timeline import Step, Timeline, Work

_WIDTH_INCHES = 12.0
_LANE_INCHES = 0.72
_PANEL_INCHES = 0.75
_MARGIN_INCHES = 1.15
_COMPUTE_HEIGHT = 0.56
_WAIT_HEIGHT = 0.2
_SEND_HEIGHT = 0.09
_LEAST_NUMBERED_SHARE = 0.011
_DECODE_SHARE = 0.14
_INK = "#2b2d36"
_GRID = "#e4e6ec"
_WAIT = "#c9ccd6"
_SEND = "#e4572e"
_DECODE = "#8d93a6"
_CACHE = "#f2b84b"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One request and what to say of it."""

    title: str
    timeline: Timeline


def save(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels as a PNG file, at least one; a stage without work keeps its lane.

    Raises:
        OSError: the file cannot be written.
    """
    heights = [_PANEL_INCHES + _LANE_INCHES * panel.timeline.num_stages for panel in panels]
    figure = Figure(
        figsize=(_WIDTH_INCHES, sum(heights) + _MARGIN_INCHES),
        layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12),
    )
    canvas = FigureCanvasAgg(figure)
    shape = {"height_ratios": heights}
    axes_of_panels = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw=shape)[
        :, 0
    ]
    prefill_s = max(panel.timeline.prefill_s for panel in panels) or 1.0
    span_s = prefill_s * (1 + _DECODE_SHARE)
    for panel, axes in zip(panels, axes_of_panels, strict=True):
        _dress(axes, panel, span_s)
        _draw(axes, panel.timeline, span_s)
    axes_of_panels[-1].set_xlabel("seconds since the request arrived", color=_INK)
    _legend(figure)
    canvas.print_png(path)


def _dress(axes: Axes, panel: Panel, span_s: float) -> None:
    """Set title, axes and lanes."""
    num_stages = panel.timeline.num_stages
    axes.set_title(panel.title, loc="left", fontsize=11.5, fontweight="bold", color=_INK, pad=8)
    axes.set_xlim(0, span_s)
    axes.set_ylim(num_stages - 0.42, -0.5)
    labels = [f"stage {stage}" for stage in range(num_stages)]
    if len(panel.timeline.chunks) > 1:  # a lone chunk fills one stage after the other anyhow
        labels = [
            f"{label}\n{panel.timeline.busy_share(stage):.0%} busy"
            for stage, label in enumerate(labels)
        ]
    axes.set_yticks(range(num_stages), labels, fontsize=9.5, color=_INK)
    axes.tick_params(length=0, labelcolor=_INK)
    axes.tick_params(axis="x", labelbottom=True)
    axes.grid(visible=True, axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw(axes: Axes, timeline: Timeline, span_s: float) -> None:
    """Draw every span of one request."""
    palette = colormaps["viridis"]
    last = max(1, len(timeline.chunks) - 1)
    _cache(axes, timeline)
    for index, step in enumerate(timeline.chunks):
        colour = palette(0.12 + 0.78 * index / last)
        for work in step.work:
            _wait(axes, work)
            _bar(axes, work, colour)
            if work.end_s - work.start_s > span_s * _LEAST_NUMBERED_SHARE:
                _number(axes, work, index, dark=index / last > 0.6)
        _hops(axes, step)
    for step in timeline.decode:
        for work in step.work:
            if work.end_s <= span_s:
                _decode(axes, work)


def _cache(axes: Axes, timeline: Timeline) -> None:
    """Shade the time in which cached pages were looked for and loaded."""
    for stage in range(timeline.num_stages):
        axes.barh(stage, timeline.cache_s, left=0, height=_COMPUTE_HEIGHT, color=_CACHE, zorder=2.5)


def _bar(axes: Axes, work: Work, colour: object) -> None:
    axes.barh(
        work.stage_index,
        work.end_s - work.start_s,
        left=work.start_s,
        height=_COMPUTE_HEIGHT,
        color=colour,
        edgecolor="white",
        linewidth=0.6,
        zorder=3,
    )
    if work.sent_s > work.end_s:
        axes.barh(
            work.stage_index + _COMPUTE_HEIGHT / 2 + _SEND_HEIGHT / 2 + 0.02,
            work.sent_s - work.end_s,
            left=work.end_s,
            height=_SEND_HEIGHT,
            color=_SEND,
            zorder=4,
        )


def _decode(axes: Axes, work: Work) -> None:
    axes.barh(
        work.stage_index,
        work.end_s - work.start_s,
        left=work.start_s,
        height=_COMPUTE_HEIGHT,
        color=_DECODE,
        linewidth=0,
        zorder=3,
    )


def _wait(axes: Axes, work: Work) -> None:
    axes.barh(
        work.stage_index,
        work.start_s - work.ready_s,
        left=work.ready_s,
        height=_WAIT_HEIGHT,
        color="white",
        edgecolor=_WAIT,
        hatch="/////",
        linewidth=0.0,
        zorder=2,
    )


def _number(axes: Axes, work: Work, index: int, *, dark: bool) -> None:
    axes.text(
        (work.start_s + work.end_s) / 2,
        work.stage_index,
        str(index),
        ha="center",
        va="center",
        fontsize=9,
        fontweight="bold",
        color=_INK if dark else "white",
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


def _legend(figure: Figure) -> None:
    palette = colormaps["viridis"]
    figure.legend(
        handles=[
            Patch(color=palette(0.45), label="computes a chunk (number)"),
            Patch(facecolor="white", edgecolor=_WAIT, hatch="/////", label="waits for input"),
            Patch(color=_CACHE, label="loads cached pages"),
            Patch(color=_SEND, label="sends to the next stage"),
            Patch(color=_DECODE, label="decode step"),
        ],
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9.5,
        labelcolor=_INK,
    )
