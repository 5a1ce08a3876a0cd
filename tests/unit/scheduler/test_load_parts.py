"""Of a load each stage is told its own part."""

from __future__ import annotations

import dataclasses

from scheduler.actions import HeldPages, SendCancelLoad, SendCommitLoad, SendLoad
from scheduler.codec import stage_orders
from scheduler.load_parts import part_of

_HELD = HeldPages(lacking=(1,), num_pages=2, num_host=1)
_DIGESTS = tuple(bytes([index]) * 32 for index in range(4))
_LOAD = SendLoad(epoch=1, load_id=7, digests=_DIGESTS, host_ids=(5, 6, 8), held=_HELD)
_COMMIT = SendCommitLoad(epoch=1, load_id=7, page_ids=(10, 11, 12), held=_HELD)


def test_who_lacks_pages_loads_all_of_them() -> None:
    """It has only those host pages that every stage has."""
    expected = SendLoad(epoch=1, load_id=7, digests=_DIGESTS, host_ids=(5,))
    assert part_of(1, _LOAD) == expected
    assert part_of(1, _COMMIT) == SendCommitLoad(epoch=1, load_id=7, page_ids=(10, 11, 12))


def test_who_has_the_front_loads_the_rest() -> None:
    """What lies in the pool already stays there, and is not copied over itself."""
    expected = SendLoad(epoch=1, load_id=7, digests=_DIGESTS[2:], host_ids=(8,))
    assert part_of(0, _LOAD) == expected
    assert part_of(0, _COMMIT) == SendCommitLoad(epoch=1, load_id=7, page_ids=(12,))


def test_who_has_all_is_told_nothing() -> None:
    """It has nothing to read; a rest that it has read in vain it drops."""
    whole = dataclasses.replace(_LOAD, digests=_DIGESTS[:2], host_ids=())
    assert part_of(0, whole) is None
    short = dataclasses.replace(_COMMIT, page_ids=(10,))
    assert part_of(0, short) == SendCancelLoad(epoch=1, load_id=7)


def test_orders_are_those_of_the_stages() -> None:
    """A load that all stages carry out is one order for all."""
    first, second = stage_orders(dataclasses.replace(_LOAD, digests=_DIGESTS[:2]), 2)
    assert first is None
    assert second is not None
    assert list(second.load.digests) == list(_DIGESTS[:2])
    same = stage_orders(dataclasses.replace(_LOAD, held=None), 2)
    assert [list(order.load.host_ids) for order in same if order] == [[5, 6, 8]] * 2
