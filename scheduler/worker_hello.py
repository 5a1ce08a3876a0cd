"""What a worker says of itself when it attaches. Plain values."""

from __future__ import annotations

import dataclasses

from chunkmesh.layers import LayerRange
from scheduler.latency_fit import LatencyPoint


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendName:
    """What computes one kind of operation on a worker."""

    operation: str
    name: str
    reason: str
    """Why nothing faster computes it; may be empty."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHello:
    """What a worker says of itself when it attaches."""

    worker_id: str
    """Its incarnation: random, new at every process start."""
    protocol_version: int
    layers: LayerRange
    model_layers: int
    layer_digests: tuple[bytes, ...]
    embedding_digest: bytes
    head_digest: bytes
    config_digest: bytes
    dtype: str
    """Of activations and KV, such as float32."""
    hidden_size: int
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    host_capacity_tokens: int = 0
    """Of its host memory for pages."""
    data_address: str
    peer: str = ""
    """Data address that it would rather send its activations to; empty if it has no wish."""
    transport: str
    device: str
    profile: tuple[LatencyPoint, ...] = ()
    """What it measured of its layers; empty if it did not."""
    backends: tuple[BackendName, ...] = ()
    """What computes its operations, to be told."""
    chunk_alignment_tokens: int = 0
    """Chunks of a multiple of it keep all of its device busy; 0 if no length is better."""
