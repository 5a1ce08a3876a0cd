"""Draws runs of `chunkmesh bench serve`: how TTFT and ITL are spread, and tokens over time.

Several results lie over each other. Needs matplotlib, which the extra chunkmesh[demo] brings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkmesh.bench.figures import latencies_ms
from chunkmesh.bench.record import RequestRecord
from chunkmesh.cli.picture_style import INK, dress

_SIZE_INCHES = (12.0, 4.0)
_NUM_BINS = 30
_OPACITY = 0.8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRun:
    """One line of each plot."""

    label: str
    """Its result's; runs of one label have one colour."""
    records: Sequence[RequestRecord]


def save(runs: Sequence[DrawnRun], path: Path, kind: Literal["png", "svg"]) -> None:
    """Write the picture of at least one run.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    ttft, itl, rate = figure.subplots(1, 3)
    labels = list(dict.fromkeys(run.label for run in runs))
    for run in runs:
        share = labels.index(run.label) / max(1, len(labels) - 1)
        line = {"color": colormaps["viridis"](0.12 + 0.62 * share), "alpha": _OPACITY}
        done = [record for record in run.records if record.is_ok]
        for axes, metric in ((ttft, "ttft"), (itl, "itl")):
            axes.step(*shares(latencies_ms(done, metric)), where="post", **line)
        rate.step(*output_rates(run.records), where="post", **line)
    for axes, metric in ((ttft, "TTFT"), (itl, "ITL")):
        _dress(axes, f"share of {metric}s at most so long", "ms")
        axes.set_ylim(0, 1.02)
        axes.set_xlim(left=0)
    _dress(rate, "output tokens a second", "seconds since the run began")
    rate.set_ylim(bottom=0)
    if len(labels) > 1:
        first = {
            run.label: line for run, line in zip(reversed(runs), ttft.lines[::-1], strict=True)
        }
        figure.legend(
            [first[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=4,
            frameon=False,
            labelcolor=INK,
        )
    figure.savefig(path, format=kind)


def shares(
    values: Sequence[float],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return values in order and which share of them is at most as large, from a share of 0 on."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not len(ordered):
        return ordered, ordered
    return np.concatenate([ordered[:1], ordered]), np.arange(len(ordered) + 1) / len(ordered)


def output_rates(
    records: Sequence[RequestRecord],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return begins of equal times and tokens a second in each, with a last 0 at the end."""
    at_s = np.asarray([at for record in records for at in record.arrivals_s])
    tokens = np.asarray([count for record in records for count in record.arrived_tokens])
    if not len(at_s):
        return np.zeros(1), np.zeros(1)
    counts, edges = np.histogram(at_s, _NUM_BINS, (0.0, float(at_s.max())), weights=tokens)
    return edges, np.append(counts / np.diff(edges), 0.0)


def _dress(axes: Axes, title: str, unit: str) -> None:
    dress(axes)
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(unit, color=INK)
