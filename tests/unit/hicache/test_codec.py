"""Selections and limits that come from outside."""

from __future__ import annotations

import pytest

from chunkmesh.coverage import MAX_LAYER_BYTES
from chunkmesh.errors import InvalidRequest
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import hicache_pb2 as pb
from hicache import codec
from hicache.namespaces import MAX_TEXT_CHARACTERS, NamespaceInfo
from hicache.selection import Below, Everything, Idle, InNamespace, Prompt, Selection

DIGEST = bytes(range(32))
SHORT = DIGEST.hex()[:12]


@pytest.mark.parametrize(
    ("message", "selection", "text"),
    [
        (pb.Selection(everything=True), Everything(), "all pages"),
        (pb.Selection(below=DIGEST[:6]), Below(prefix=DIGEST[:6]), f"page {SHORT} and below"),
        (
            pb.Selection(prompt=pb.DigestList(digests=[DIGEST])),
            Prompt(digests=(DIGEST,)),
            "a prompt of 1 pages",
        ),
        (
            pb.Selection(namespace=DIGEST),
            InNamespace(namespace=DIGEST),
            f"namespace {SHORT}",
        ),
        (pb.Selection(idle_ms=1500), Idle(idle_s=1.5), "pages idle for 1.5 s"),
    ],
)
def test_selections(message: pb.Selection, selection: Selection, text: str) -> None:
    """Each choice of the contract, and how the audit log tells it."""
    assert selection == codec.selection_of(message)
    assert text == codec.selection_text(selection)


@pytest.mark.parametrize(
    "message",
    [
        pb.Selection(),
        pb.Selection(everything=False),
        pb.Selection(namespace=b"short"),
        pb.Selection(prompt=pb.DigestList(digests=[b"short"])),
    ],
)
def test_no_selection(message: pb.Selection) -> None:
    """A request without a choice must never mean all pages."""
    with pytest.raises(InvalidRequest):
        codec.selection_of(message)


def test_an_unknown_order_is_refused() -> None:
    """A newer client must not be answered in another order than it asked for."""
    assert "hits" == codec.order_of(pb.RUN_ORDER_HITS)
    assert "tree" == codec.order_of(pb.RUN_ORDER_UNSPECIFIED)
    with pytest.raises(InvalidRequest, match="9"):
        codec.order_of(9)


def test_what_a_namespace_stands_for_is_bounded() -> None:
    """It is kept as long as the namespace; a caller must not fill the memory with it."""
    message = pb.NamespaceInfo(fingerprint=b"f" * 99, model="m" * 99_999, page_tokens=16)
    assert codec.info_of(message) == NamespaceInfo(
        fingerprint=b"f" * 32,
        model="m" * MAX_TEXT_CHARACTERS,
        kv_dtype="",
        page_tokens=16,
        rope="",
        adapter="",
        salted=False,
    )


def test_a_page_of_absurd_size_is_refused() -> None:
    """Two of them would add up to more than any message can tell, for all who ask."""
    request = pb.CommitRequest(
        layers=common_pb2.LayerRange(first=0, last=4),
        model_layers=4,
        page_bytes=4 * MAX_LAYER_BYTES,
    )
    assert MAX_LAYER_BYTES == codec.coverage_of(request).layer_bytes
    request.page_bytes = (1 << 64) - 1
    with pytest.raises(InvalidRequest, match="bytes of a page"):
        codec.coverage_of(request)
