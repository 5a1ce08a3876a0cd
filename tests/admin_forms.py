"""Keys and types of what hicache-admin prints with --json."""

from __future__ import annotations

from typing import Any

HEX = str
CHANGE = {"dry_run": bool, "num_pages": int, "num_bytes": int}
RUN = {
    "namespace": HEX,
    "first_digest": HEX,
    "last_digest": HEX,
    "first_page": int,
    "num_pages": int,
    "depth": int,
    "num_children": int,
    "num_bytes": int,
    "layers": [[int]],
    "visible": bool,
    "num_hits": int,
    "idle_ms": int,
    "num_leased_pages": int,
    "num_pinned_pages": int,
    "priority": int,
}
STATS = {
    "num_pages": int,
    "num_partial_pages": int,
    "num_bytes": int,
    "num_leases": int,
    "num_queries": int,
    "num_queried_pages": int,
    "num_hit_pages": int,
    "num_evicted_pages": int,
    "budget_bytes": int,
    "redis_fault": str,
    "redis_version": str,
    "rebuilding": bool,
}
PING = {
    "round_trip_ms": float,
    "redis": str,
    "redis_fault": str,
    "redis_version": str,
    "rebuilding": bool,
}
NAMESPACES: dict[str, Any] = {
    "namespaces": [
        {
            "namespace": HEX,
            "known": bool,
            "fingerprint": HEX,
            "model": str,
            "kv_dtype": str,
            "page_tokens": int,
            "rope": str,
            "adapter": str,
            "salted": bool,
            "model_layers": int,
            "layers": [[int]],
            "num_pages": int,
            "num_partial_pages": int,
            "num_bytes": int,
            "num_pinned_pages": int,
            "quota_bytes": int,
            "num_hits": int,
        }
    ]
}
LOOKUP: dict[str, Any] = {
    "namespace": HEX,
    "num_tokens": int,
    "page_tokens": int,
    "num_pages": int,
    "cached_tokens": int,
    "hit_tokens": int,
    "layers": [{"first": int, "last": int, "cached_tokens": int}],
    "pages": [{"first": int, "last": int, "layers": [[int]], "visible": bool, "num_hits": int}],
}
QUOTA = {
    "dry_run": bool,
    "namespace": HEX,
    "quota_bytes": int,
    "num_pages": int,
    "num_bytes": int,
}
QUOTAS: dict[str, Any] = {
    "quotas": [
        {"namespace": HEX, "model": str, "salted": bool, "quota_bytes": int, "num_bytes": int}
    ]
}
VERIFIED = {
    "dry_run": bool,
    "num_pages": int,
    "num_checked": int,
    "num_bytes": int,
    "num_missing": int,
    "num_damaged": int,
    "bad_digests": [HEX],
}
AUDIT: dict[str, Any] = {
    "entries": [
        {
            "unix_ms": int,
            "peer": str,
            "caller": str,
            "method": str,
            "request": str,
            "num_pages": int,
            "num_bytes": int,
        }
    ]
}
CHANGED = {
    "unix_ms": int,
    "kind": str,
    "namespace": HEX,
    "num_pages": int,
    "num_queried_pages": int,
    "num_bytes": int,
    "digest": HEX,
    "text": str,
}


def check_form(value: object, form: object, place: str = "") -> None:
    """Check that a value has exactly these keys and types."""
    if isinstance(form, dict):
        assert isinstance(value, dict), place
        assert list(form) == list(value), place
        for key, part in form.items():
            check_form(value[key], part, f"{place}.{key}")
    elif isinstance(form, list):
        assert isinstance(value, list), place
        for index, item in enumerate(value):
            check_form(item, form[0], f"{place}[{index}]")
    else:
        assert form is type(value), place
