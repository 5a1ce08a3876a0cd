"""Runs of neighbouring pages that are stored for the same layers, as an admin wants to see them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

from chunkmesh.layers import LayerRange
from chunkmesh.v1 import hicache_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """Pages [first, last) of a prompt."""

    first: int
    last: int
    layers: tuple[tuple[int, int], ...]
    """Half-open ranges; empty if none is stored."""
    visible: bool
    num_hits: int
    """Most hits of one page in the run."""

    @property
    def layers_text(self) -> str:
        """Return the layers for people, last ones included."""
        return ", ".join(str(LayerRange(first=first, last=last)) for first, last in self.layers)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerReach:
    """How far a prompt is stored on layers [first, last), which all are stored equally far."""

    first: int
    last: int
    num_pages: int
    """Leading pages, >= 0."""

    @property
    def layers_text(self) -> str:
        """Return the layers for people, the last one included."""
        return str(LayerRange(first=self.first, last=self.last))


def layer_reach(states: Iterable[hicache_pb2.PageState]) -> tuple[LayerReach, ...]:
    """Tell layer by layer, up to the highest one seen, how many leading pages are stored."""
    pages = [[(each.first, each.last) for each in state.layers] for state in states]
    borders = sorted({0, *(border for layers in pages for each in layers for border in each)})
    reach = []
    for first, last in itertools.pairwise(borders):
        held = (any(a <= first and last <= b for a, b in layers) for layers in pages)
        num_pages = sum(1 for _ in itertools.takewhile(bool, held))
        reach.append(LayerReach(first=first, last=last, num_pages=num_pages))
    return tuple(
        LayerReach(first=group[0].first, last=group[-1].last, num_pages=num_pages)
        for num_pages, each in itertools.groupby(reach, key=lambda part: part.num_pages)
        for group in [list(each)]
    )


def page_runs(states: Iterable[hicache_pb2.PageState]) -> tuple[PageRun, ...]:
    """Group the pages of a prompt."""
    described = [
        (tuple((layers.first, layers.last) for layers in state.layers), state.visible, index, state)
        for index, state in enumerate(states)
    ]
    runs = []
    for (layers, visible), group in itertools.groupby(described, key=lambda page: page[:2]):
        pages = list(group)
        runs.append(
            PageRun(
                first=pages[0][2],
                last=pages[-1][2] + 1,
                layers=layers,
                visible=visible,
                num_hits=max(state.num_hits for *_, state in pages),
            )
        )
    return tuple(runs)
