"""What all pictures of stages have in common: colours and plain axes. Needs matplotlib."""

from __future__ import annotations

from matplotlib.axes import Axes

INK = "#2b2d36"
WAIT = "#c9ccd6"
SEND = "#e4572e"
_GRID = "#e4e6ec"


def dress(axes: Axes) -> None:
    """Leave nothing of a frame but a grid in time."""
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(visible=True, axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
