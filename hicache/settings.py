"""Settings of hicache-server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from chunkmesh.settings import Port, Settings
from hicache.eviction_policy import PolicyName


class HiCacheSettings(Settings):
    """Keeps the shared index of pages that workers store in Redis."""

    service: ClassVar[str] = "hicache"
    command: ClassVar[str] = "hicache-server"

    port: Port = 50071
    """Port of the gRPC service HiCache."""
    http_port: Port = 8071
    """Port of the HTTP side door: /live, /ready, /metrics, /server_info."""
    redis_url: Annotated[tuple[str, ...], Field(min_length=1)] = ("redis://127.0.0.1:6379",)
    """Redis or Valkey that holds the pages: redis://, rediss:// or unix://. Given several times,
    pages are spread over servers that know nothing of each other, listed in the same order for all
    services, or these are some members of a Redis Cluster."""
    redis_username: str = ""
    """Name of the ACL user at Redis."""
    redis_password_file: Path | None = None
    """File of its password; read at every connection."""
    redis_ca_certs: Path | None = None
    """PEM file of the authorities of a Redis with TLS (rediss://); the system's if not given."""
    max_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of pages to keep in Redis; 0 means no limit."""
    eviction_policy: PolicyName = "lru"
    """Which pages go first: the least recently used, the least often used (lfu), or those of the
    lowest priority."""
