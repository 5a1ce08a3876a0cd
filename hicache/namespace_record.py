"""What a namespace stands for, as the fields of a hash in Redis. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.namespaces import NamespaceInfo


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
            fingerprint=bytes.fromhex(fields[b"fingerprint"].decode()),
            model=fields[b"model"].decode(),
            kv_dtype=fields[b"kv_dtype"].decode(),
            page_tokens=int(fields[b"page_tokens"]),
            rope=fields[b"rope"].decode(),
            adapter=fields[b"adapter"].decode(),
            salted=fields[b"salted"] == b"1",
        )
    except (KeyError, ValueError):
        return None
