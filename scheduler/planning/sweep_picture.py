"""Draws a sweep: time to the first token and efficiency over the number of stages.

Needs matplotlib, which the extra chunkmesh[demo] brings.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scheduler.planning.cuts import Strategy
from scheduler.planning.survey import Survey
from scheduler.planning.token_text import short_count

_SIZE_INCHES = (13.0, 6.0)
_STYLES = ("-", "--", ":", "-.", (0, (1, 3)))
"""Of the strategies, the last one solid."""


def save_sweep(survey: Survey, path: Path) -> None:
    """Write a picture of a sweep; its suffix says what kind.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    ttft, efficiency = figure.subplots(1, 2)
    _lines(survey, ttft, efficiency)
    ttft.set_title("seconds to the first token", loc="left")
    ttft.set_yscale("log")
    efficiency.set_title("efficiency against one stage", loc="left")
    efficiency.set_ylim(0, 1.02)
    stages = sorted({plan.cluster.num_stages for plan in survey.plans})
    for axes in (ttft, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(stages, [str(count) for count in stages])
        axes.set_xlabel("stages")
        axes.grid(visible=True, alpha=0.3)
    title = f"{survey.subject.name}: {_note(survey)}"
    figure.suptitle(title, fontsize=11, parse_math=False)  # $ in a path is no formula
    handles, labels = ttft.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path)


def _lines(survey: Survey, ttft: Axes, efficiency: Axes) -> None:
    """Draw a line for each prompt length and strategy: colour and style."""
    lengths = survey.options.prompt_tokens
    strategies = _shown(survey.options.strategies)
    palette = colormaps["viridis"]
    for index, tokens in enumerate(lengths):
        colour = palette(0.9 * index / max(1, len(lengths) - 1))
        for style, strategy in zip(_STYLES, reversed(strategies), strict=False):
            plans = [
                plan
                for plan in survey.plans
                if plan.load.prompt_tokens == tokens and plan.cuts.strategy is strategy
            ]
            stages = [plan.cluster.num_stages for plan in plans]
            label = f"{short_count(tokens)} {strategy.value}"
            for axes, values in (
                (ttft, [plan.ttft_ms / 1000 for plan in plans]),
                (efficiency, [plan.efficiency for plan in plans]),
            ):
                axes.plot(stages, values, label=label, color=colour, linestyle=style, marker=".")


def _shown(strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
    """Return the last strategy and the first: more lines cannot be told apart."""
    return tuple(dict.fromkeys((strategies[0], strategies[-1])))


def _note(survey: Survey) -> str:
    source = "estimate scaled from " if survey.latency.is_estimate else ""
    return source + survey.latency.origin.partition(":")[0]
