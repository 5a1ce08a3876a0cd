"""What is let go some items at a time."""

from __future__ import annotations

from chunkmesh.remains import Remains


def test_never_more_than_asked_for_is_let_go() -> None:
    """Whatever kinds of containers there are; empty ones are none."""
    remains = Remains()
    numbers, names, pairs = {1: "a", 2: "b"}, {"c"}, [(1, 2), (3, 4), (5, 6)]
    remains.add(numbers, names, {}, pairs)
    left = []
    while remains:
        remains.drop(2)
        left.append(len(numbers) + len(names) + len(pairs))
    assert left == [4, 2, 0]
    remains.drop(1)
    assert not remains
