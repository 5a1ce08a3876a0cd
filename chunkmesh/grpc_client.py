"""Channels to ChunkMesh servers. One channel a target, made once and closed by its owner."""

from __future__ import annotations

import grpc

from chunkmesh.address import HostPort
from chunkmesh.grpc_options import CLIENT_OPTIONS


def channel(address: HostPort) -> grpc.aio.Channel:
    """Return a channel to address; it connects on first use, and again after a loss."""
    return grpc.aio.insecure_channel(str(address), options=CLIENT_OPTIONS)
