"""What a worker may say of itself: whoever has taken one over must not fill others' memory."""

from __future__ import annotations

from typing import Any

import pytest

from chunkmesh.errors import InvalidRequest
from chunkmesh.v1 import stage_pb2 as pb
from scheduler.hello_checks import check_hello

_HELLO: dict[str, Any] = {
    "incarnation": "w",
    "data_address": "h:1",
    "peer": "h:2",
    "transport": "ucx",
    "device": "cpu",
    "hidden_size": 8,
    "kv_bytes_per_token": 16,
    "kv_capacity_tokens": 4096,
    "host_capacity_tokens": 0,
    "layer_digests": [b"d" * 16],
}


def test_a_usual_hello() -> None:
    """Nothing is wrong with it."""
    check_hello(pb.Hello(**_HELLO))


@pytest.mark.parametrize("name", ["incarnation", "data_address", "peer", "transport", "device"])
@pytest.mark.parametrize("text", ["x" * 301, "a\x1b[2J", "a\nb"], ids=["long", "escape", "lines"])
def test_texts_are_short_and_printable(name: str, text: str) -> None:
    """They stand in the terminals and logs of others."""
    with pytest.raises(InvalidRequest, match=name):
        check_hello(pb.Hello(**(_HELLO | {name: text})))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", (1 << 24) + 1),
        ("kv_bytes_per_token", 0),
        ("kv_capacity_tokens", (1 << 28) + 1),
        ("host_capacity_tokens", (1 << 31) + 1),
    ],
)
def test_amounts_have_limits(name: str, value: int) -> None:
    """The scheduler keeps a few bytes for each page."""
    with pytest.raises(InvalidRequest, match=name):
        check_hello(pb.Hello(**(_HELLO | {name: value})))


@pytest.mark.parametrize(
    "name", ["layer_digests", "embedding_digest", "head_digest", "config_digest"]
)
def test_digests_have_limits(name: str) -> None:
    """Each is kept as long as the worker is attached."""
    digest = b"d" * 65
    with pytest.raises(InvalidRequest, match="a digest of 65 bytes"):
        check_hello(pb.Hello(**(_HELLO | {name: [digest] if name == "layer_digests" else digest})))
