"""Digests of pages: equal only for what has the same bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import struct
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


def test_salts_tenants_and_secrets_are_apart() -> None:
    """Nobody can aim at another's pages (O17)."""
    keys: list[dict[str, Any]] = [
        {},
        {"cache_salt": "a"},
        {"tenant": "a"},
        {"tenant": "a", "cache_salt": "a"},
        {"tenant": "aa"},
        {"cache_salt": "aa"},
    ]
    secrets = (b"", b"0123456789abcdef", b"another, also of 16 bytes")
    digests = [
        _digests(dataclasses.replace(NAMESPACE, secret=secret), **whose)
        for secret in secrets
        for whose in keys
    ]
    assert len(set.union(*digests)) == 4 * len(secrets) * len(keys)


@pytest.mark.parametrize("secret", [b"", b"sixteen bytes or"], ids=["no secret", "a secret"])
def test_first_link_by_hand(secret: bytes) -> None:
    """Meshes of all versions must agree on keys, or what is stored is lost with an update."""
    message = b"\x04\0\0\0blue" + b"\x06\0\0\0summer"
    parts = (
        b"chunkmesh page v1",
        b"f" * 32,
        b"float32",
        b"\x10\0\0\0",
        b"plain",
        b"",
        hmac.new(secret, message, hashlib.sha256).digest(),
    )
    joined = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    namespace = dataclasses.replace(NAMESPACE, secret=secret)
    expected = hashlib.sha256(joined).digest()
    assert expected == namespace.digest(tenant="blue", cache_salt="summer")


def test_key_without_salt_and_secret() -> None:
    """Meshes that were given neither share their pages, today's with tomorrow's."""
    expected = "92bd484173d3ea20ec58856782357566e693e2ceac7cb83d667af5290ecafab6"
    assert expected == NAMESPACE.digest().hex()


def test_secret_is_not_shown() -> None:
    """What is logged or raised with a namespace must not tell it."""
    assert "hush" not in repr(dataclasses.replace(NAMESPACE, secret=b"hush"))
