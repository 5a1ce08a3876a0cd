"""Digests of pages: equal only for what has the same bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from chunkmesh.pages import Namespace, extend_chain

NAMESPACE = Namespace(fingerprint=b"f" * 32, kv_dtype="float32", page_tokens=16, rope="plain")
IDS = np.arange(64, dtype=np.uint32)


def _digests(namespace: Namespace, **whose: Any) -> set[bytes]:
    return set(extend_chain(namespace.digest(**whose), IDS, 16))


@pytest.mark.parametrize(
    "change",
    [
        {"kv_dtype": "bfloat16"},
        {"kv_dtype": "float16"},
        {"fingerprint": b"g" * 32},
        {"page_tokens": 32},
        {"rope": "yarn"},
        {"adapter": "a"},
    ],
)
def test_pages_of_other_bytes_have_other_keys(change: dict[str, Any]) -> None:
    """The same tokens in another type, model or page size must never be found (O17)."""
    other = dataclasses.replace(NAMESPACE, **change)
    assert not _digests(NAMESPACE) & _digests(other)


def test_narrow_types_of_one_width_are_told_apart() -> None:
    """bfloat16 and float16 pages have as many bytes, so only the key can tell (O17)."""
    narrow = [dataclasses.replace(NAMESPACE, kv_dtype=name) for name in ("bfloat16", "float16")]
    assert not _digests(narrow[0]) & _digests(narrow[1])


def test_salts_and_tenants_are_apart() -> None:
    """Nobody can aim at another's pages (O17)."""
    keys: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"tenant": "a"}, {"secret": b"a"}]
    digests = [_digests(NAMESPACE, **whose) for whose in keys]
    assert len(set.union(*digests)) == 4 * len(digests)
