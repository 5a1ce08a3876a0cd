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
