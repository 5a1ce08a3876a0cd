"""Loads: minimum over the stages, deadlines, late answers."""

from __future__ import annotations

from scheduler.loads import LoadEnd, Loads
from scheduler.request import Request
from tests.specs import make_spec


def _request(pages: int) -> Request:
    """Return a request with a match."""
    return Request(spec=make_spec("a", 200), num_match_pages=pages)


def test_each_load_has_its_deadline() -> None:
    """Only what is late is given up."""
    loads = Loads(num_stages=2, timeout_s=1.0)
    early, late = _request(3), _request(4)
    assert len(loads.start(early, now_s=0.0).digests) == 3
    loads.start(late, now_s=0.5)
    loads.loaded(0, 0, 3)
    assert loads.expire(0.9) == []
    assert loads.expire(1.2) == [LoadEnd(request=early, load_id=0, num_pages=0)]
    assert loads.loaded(1, 0, 3) is None
    loads.loaded(0, 1, 4)
    assert loads.loaded(1, 1, 2) == LoadEnd(request=late, load_id=1, num_pages=2)
    assert len(loads) == 0


def test_second_answer_of_a_stage_does_not_stand_for_another() -> None:
    """Two answers of stage 0 are not one of each stage."""
    loads = Loads(num_stages=2, timeout_s=1.0)
    loads.start(_request(3), now_s=0.0)
    assert loads.loaded(0, 0, 3) is None
    assert loads.loaded(0, 0, 2) is None
    end = loads.loaded(1, 0, 3)
    assert end is not None
    assert end.num_pages == 3
