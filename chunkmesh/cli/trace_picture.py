"""Draws a trace as a picture: a lane for each stage, a strip for each request, one clock.

Chunks of a lone request are coloured by number, those of several by request. Needs matplotlib,
which the extra chunkmesh[demo] brings. Bars are drawn as collections, for there may be thousands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from chunkmesh.cli.picture_style import INK, SEND, WAIT, dress
from chunkmesh.cli.pipeline_trace import PipelineTrace, StageRun

Colour: TypeAlias = tuple[float, float, float, float]

_WIDTH_INCHES = 12.0
_LANE_INCHES = 0.72
_STRIP_INCHES = 0.26
_MARGIN_INCHES = 1.7
_COMPUTE_HEIGHT = 0.56
_WAIT_HEIGHT = 0.16
_SEND_HEIGHT = 0.09
_STRIP_HEIGHT = 0.6
_LEAST_NUMBERED_SHARE = 0.011
_DECODE = (0.55, 0.58, 0.65, 1.0)
_WAITING_FOR_TOKEN = 0.35
"""Opacity of a request's strip before its first token."""


def save(trace: PipelineTrace, path: Path, kind: Literal["png", "svg"]) -> None:
    """Write the picture of a trace with at least one request.

    Raises:
        OSError: the file cannot be written.
    """
    strips_inches = _STRIP_INCHES * len(trace.requests) + 0.3
    lanes_inches = _LANE_INCHES * max(1, trace.num_stages)
    figure = Figure(
        figsize=(_WIDTH_INCHES, strips_inches + lanes_inches + _MARGIN_INCHES),
        layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.12),
    )
    strips, lanes = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [strips_inches, lanes_inches]}
    )
    _draw_strips(strips, trace)
    _draw_lanes(lanes, trace)
    for axes in (strips, lanes):
        _dress(axes, trace)
    lanes.set_xlabel("seconds since the first request arrived", color=INK)
    _legend(figure, trace)
    figure.savefig(path, format=kind)


def _dress(axes: Axes, trace: PipelineTrace) -> None:
    axes.set_xlim(0, max(trace.end_us, 1) / 1e6)
    dress(axes)


def _draw_strips(axes: Axes, trace: PipelineTrace) -> None:
    """Draw each request from its arrival to its end, pale until its first token."""
    for index, request in enumerate(trace.requests):
        ended_us = trace.end_us if request.ended_us is None else request.ended_us
        first_us = ended_us if request.first_token_us is None else request.first_token_us
        colour = _request_colour(index, trace)
        where = (index - _STRIP_HEIGHT / 2, _STRIP_HEIGHT)
        axes.broken_barh(
            [_span(request.arrived_us, first_us)], where, color=colour, alpha=_WAITING_FOR_TOKEN
        )
        axes.broken_barh([_span(first_us, ended_us)], where, color=colour)
    names = [request.told.request_id for request in trace.requests]
    labels = [name if len(name) <= 16 else f"{name[:15]}~" for name in names]
    # Ids are their clients' choice: $ is no formula.
    axes.set_yticks(range(len(labels)), labels, fontsize=8.5, color=INK, parse_math=False)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    title = "\n".join(_titles(trace))
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8, parse_math=False)


def _titles(trace: PipelineTrace) -> list[str]:
    if len(trace.requests) == 1:
        return [trace.requests[0].headline]
    return [f"{len(trace.requests)} requests on {trace.num_stages} stages"]


def _draw_lanes(axes: Axes, trace: PipelineTrace) -> None:
    """Draw what each stage did."""
    for stage in range(trace.num_stages):
        runs = [run for run in trace.runs if run.stage == stage]
        is_wide = [run.compute_us > trace.end_us * _LEAST_NUMBERED_SHARE for run in runs]
        _waits_and_sends(axes, stage, runs)
        axes.broken_barh(
            [_span(run.start_us, run.end_us) for run in runs],
            (stage - _COMPUTE_HEIGHT / 2, _COMPUTE_HEIGHT),
            facecolors=_run_colours(runs, trace),
            edgecolors="white",
            linewidths=[0.7 if wide else 0.0 for wide in is_wide],
            zorder=3,
        )
        _outlines(axes, stage, runs)
        for run in itertools.compress(runs, is_wide):
            _number(axes, run)
    labels = [f"stage {stage}" for stage in range(trace.num_stages)]
    axes.set_yticks(range(trace.num_stages), labels, fontsize=9.5, color=INK)
    axes.set_ylim(max(1, trace.num_stages) - 0.42, -0.5)


def _waits_and_sends(axes: Axes, stage: int, runs: Sequence[StageRun]) -> None:
    """Draw waits and sends of one stage."""
    axes.broken_barh(
        [_span(run.ready_us, run.start_us) for run in runs],
        (stage - _WAIT_HEIGHT / 2, _WAIT_HEIGHT),
        facecolors=WAIT,
    )
    axes.broken_barh(
        [_span(run.end_us, run.sent_us) for run in runs],
        (stage + _COMPUTE_HEIGHT / 2 + 0.02, _SEND_HEIGHT),
        facecolors=SEND,
        zorder=4,
    )


def _outlines(axes: Axes, stage: int, runs: Iterable[StageRun]) -> None:
    """Frame each compute by the time that the latency model expected of it."""
    expected = [
        _span(run.start_us, run.start_us + run.predicted_us)
        for run in runs
        if run.predicted_us is not None
    ]
    axes.broken_barh(
        expected,
        (stage - _COMPUTE_HEIGHT / 2 - 0.03, _COMPUTE_HEIGHT + 0.06),
        facecolors="none",
        edgecolors=INK,
        linewidth=0.7,
        zorder=5,
    )


def _number(axes: Axes, run: StageRun) -> None:
    """Write the number of the chunk that a bar computes, if it is one."""
    chunks = [part.chunk for part in run.microbatch.parts if part.chunk is not None]
    if len(chunks) != 1:
        return
    axes.text(
        (run.start_us + run.end_us) / 2e6,
        run.stage,
        str(chunks[0]),
        ha="center",
        va="center",
        fontsize=8.5,
        fontweight="bold",
        color="white",
        zorder=6,
    )


def _span(start_us: int, end_us: int) -> tuple[float, float]:
    """Return start and width in seconds."""
    return start_us / 1e6, (end_us - start_us) / 1e6


def _run_colours(runs: Sequence[StageRun], trace: PipelineTrace) -> list[Colour]:
    """Return the colour of each compute: that of its first chunk, or grey without one."""
    chunks = [
        next((part for part in run.microbatch.parts if part.chunk is not None), None)
        for run in runs
    ]
    if len(trace.requests) > 1:
        return [
            _DECODE if part is None else _request_colour(part.request, trace) for part in chunks
        ]
    last = max((part.chunk or 0 for part in chunks if part is not None), default=0)
    return [
        _DECODE if part is None else _palette((part.chunk or 0) / max(1, last)) for part in chunks
    ]


def _request_colour(index: int, trace: PipelineTrace) -> Colour:
    return _palette(index / max(1, len(trace.requests) - 1))


def _palette(share: float) -> Colour:
    """Return a colour dark enough for white numbers."""
    red, green, blue, alpha = colormaps["viridis"](0.12 + 0.62 * share)
    return (red, green, blue, alpha)


def _legend(figure: Figure, trace: PipelineTrace) -> None:
    """Explain what can be seen."""
    handles = [
        Patch(color=_palette(0.45), label="computes a chunk (number)"),
        Patch(color=_DECODE, label="decode step"),
        Patch(color=WAIT, label="waits for input"),
        Patch(color=SEND, label="sends"),
    ]
    if any(run.predicted_us is not None for run in trace.runs):
        frame = Patch(facecolor="none", edgecolor=INK, label="compute expected by the model")
        handles.append(frame)
    handles.append(
        Patch(color=_palette(0.45), alpha=_WAITING_FOR_TOKEN, label="request without a token yet")
    )
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
