"""What a namespace stands for, in Redis."""

from __future__ import annotations

import dataclasses

import pytest

from hicache.namespace_record import decode_info, encode_info
from hicache.namespaces import NamespaceInfo

INFO = NamespaceInfo(
    fingerprint=bytes(range(32)),
    model="m\u00fcnchen 7B",
    kv_dtype="bfloat16",
    page_tokens=128,
    rope="default 10000",
    adapter="",
    salted=True,
)


@pytest.mark.parametrize("salted", [False, True])
def test_it_is_read_as_it_was_written(salted: bool) -> None:
    """Also with names that are not ASCII."""
    info = dataclasses.replace(INFO, salted=salted)
    assert info == decode_info(encode_info(info))


@pytest.mark.parametrize(
    "change",
    [{b"page_tokens": b"many"}, {b"fingerprint": b"xyz"}, {b"model": b"\xff"}],
)
def test_damage_is_no_info(change: dict[bytes, bytes]) -> None:
    """Whatever stands in Redis, a listing must not fail by it."""
    fields = encode_info(INFO)
    assert decode_info(fields | change) is None
    assert decode_info({}) is None
    del fields[b"rope"]
    assert decode_info(fields) is None
