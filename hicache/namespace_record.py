"""What a namespace stands for, as the fields of a hash in Redis. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from chunkmesh.pages import DIGEST_BYTES
from hicache.namespaces import MAX_TEXT_CHARACTERS, NamespaceInfo

_MAX_DIGITS = len(str(2**32))


def encode_info(info: NamespaceInfo) -> dict[bytes, bytes]:
    """Return the fields."""
    return {
        b"fingerprint": info.fingerprint.hex().encode(),
        b"model": info.model.encode(),
        b"kv_dtype": info.kv_dtype.encode(),
        b"page_tokens": b"%d" % info.page_tokens,
        b"rope": info.rope.encode(),
        b"adapter": info.adapter.encode(),
        b"salted": b"1" if info.salted else b"0",
    }


def decode_info(fields: Mapping[bytes, bytes]) -> NamespaceInfo | None:
    """Return the info, or None if the fields are not such as this version writes."""
    try:
        return NamespaceInfo(
            fingerprint=_fingerprint(fields[b"fingerprint"]),
            model=_text(fields[b"model"]),
            kv_dtype=_text(fields[b"kv_dtype"]),
            page_tokens=_count(fields[b"page_tokens"]),
            rope=_text(fields[b"rope"]),
            adapter=_text(fields[b"adapter"]),
            salted=fields[b"salted"] == b"1",
        )
    except (KeyError, ValueError):
        return None


def _fingerprint(value: bytes) -> bytes:
    if len(value) > 2 * DIGEST_BYTES:
        raise ValueError(len(value))
    return bytes.fromhex(value.decode())


def _text(value: bytes) -> str:
    text = value.decode()
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError(len(text))
    return text


def _count(value: bytes) -> int:
    if not (value.isdigit() and len(value) <= _MAX_DIGITS and int(value) < 2**32):
        raise ValueError(value[:_MAX_DIGITS])
    return int(value)
