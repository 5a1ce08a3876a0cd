"""How pages are shown to admins."""

from __future__ import annotations

from chunkmesh.v1 import common_pb2, hicache_pb2
from hicache.page_runs import PageRun, layer_reach, page_runs


def state(*layers: tuple[int, int], visible: bool = False, hits: int = 0) -> hicache_pb2.PageState:
    """Return the state of one page."""
    ranges = [common_pb2.LayerRange(first=first, last=last) for first, last in layers]
    return hicache_pb2.PageState(layers=ranges, visible=visible, num_hits=hits)


def test_equal_neighbours_are_one_run() -> None:
    """A million tokens are eight thousand pages; nobody reads that many lines."""
    full = state((0, 4), visible=True, hits=1)
    states = [full, state((0, 4), visible=True, hits=3), state((0, 1), (2, 4)), state(), full]
    assert [(run.first, run.last, run.layers_text, run.num_hits) for run in page_runs(states)] == [
        (0, 2, "0-3", 3),
        (2, 3, "0, 2-3", 0),
        (3, 4, "", 0),
        (4, 5, "0-3", 1),
    ]


def test_no_pages_no_runs() -> None:
    """A prompt shorter than a page."""
    runs: tuple[PageRun, ...] = ()
    assert page_runs([]) == runs


def test_layers_reach_differently_far() -> None:
    """One stage's pages were lost: its layers end the hit, and an admin sees which."""
    both = state((0, 4), visible=True)
    states = [both, both, state((0, 2)), state((0, 2)), both]
    reach = [(each.layers_text, each.num_pages) for each in layer_reach(states)]
    assert [("0-1", 5), ("2-3", 2)] == reach


def test_layers_that_reach_equally_far_are_one() -> None:
    """Also where their writers cut them differently."""
    states = [state((0, 1), (1, 3), (3, 4)), state((0, 2), (2, 4))]
    assert [("0-3", 2)] == [(each.layers_text, each.num_pages) for each in layer_reach(states)]
    assert () == layer_reach([state(), state()])
