"""A port for a process that a test starts."""

from __future__ import annotations

from chunkmesh.ports import bind_unused


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now."""
    with bind_unused(host) as bound:
        port: int = bound.getsockname()[1]
        return port
