"""How pages are shown to admins."""

from __future__ import annotations

from chunkmesh.v1 import common_pb2, hicache_pb2
from hicache.page_runs import PageRun, page_runs


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
