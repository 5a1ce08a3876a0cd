"""Digests by their first bytes."""

from __future__ import annotations

from chunkmesh.digest_starts import DigestStarts

A, B, C = b"1234567a", b"1234567b", b"99999999"


def test_a_start_finds_all_that_begin_so() -> None:
    """Four bytes or more, up to the whole digest."""
    starts = DigestStarts()
    for digest in (A, B, C):
        starts.add(digest)
    assert starts.find(b"1234") == (A, B)
    assert starts.find(B) == (B,)
    assert starts.find(b"99999") == (C,)
    assert starts.find(b"12349") == starts.find(b"0000") == ()


def test_what_is_removed_is_not_found() -> None:
    """Also where two shared their beginning."""
    starts = DigestStarts()
    starts.add(A)
    starts.add(B)
    starts.remove(A)
    assert starts.find(b"1234") == (B,)
    starts.remove(B)
    assert starts.all() == frozenset()
