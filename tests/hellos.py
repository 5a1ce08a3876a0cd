"""Workers of a model of six layers as they introduce themselves, and a registry to meet them."""

from __future__ import annotations

from typing import TypeVar

from chunkmesh.layers import LayerRange
from scheduler.decisions import Decision, SendJoin
from scheduler.formation import OutboundLink
from scheduler.prospect import Patience
from scheduler.registry import Registry
from scheduler.worker_hello import WorkerHello

Kind = TypeVar("Kind")
MODEL_LAYERS = 6
TERM = 3
BASE = TERM << 32
"""Epochs are one more, two more, and so on."""
PATIENCE = Patience(takeover_s=1.5, announced_s=30.0)


def new_registry() -> Registry:
    """Make a registry whose pairing tokens count up."""
    tokens = (n.to_bytes(16, "big") for n in range(1, 1 << 20))
    return Registry(
        model_layers=MODEL_LAYERS,
        page_tokens=16,
        new_token=lambda: next(tokens),
        patience=PATIENCE,
        term=TERM,
    )


def hello(
    worker_id: str, first: int, last: int, *, capacity: int = 160, peer: str = ""
) -> WorkerHello:
    """Describe a worker."""
    return WorkerHello(
        worker_id=worker_id,
        protocol_version=1,
        layers=LayerRange(first=first, last=last),
        model_layers=MODEL_LAYERS,
        layer_digests=tuple(bytes([layer]) for layer in range(first, last)),
        embedding_digest=b"e" if first == 0 else b"",
        head_digest=b"h" if last == MODEL_LAYERS else b"",
        config_digest=b"c",
        dtype="float32",
        hidden_size=8,
        kv_bytes_per_token=64,
        kv_capacity_tokens=capacity,
        data_address=f"host:{worker_id}",
        peer=peer,
        transport="memory",
        device="cpu",
    )


def joins(decisions: list[Decision]) -> dict[int, list[str]]:
    """Return who is asked to join which epoch, by stage."""
    routes: dict[int, list[str]] = {}
    for each in decisions:
        if isinstance(each, SendJoin):
            routes.setdefault(each.epoch, []).append(each.worker_id)
    return routes


def stand(
    registry: Registry, worker_ids: str, epoch: int | None = None, now_s: float = 0.0
) -> list[Decision]:
    """Answer Join and Connect for workers of one letter each; return the last decisions."""
    epoch = epoch or registry.epoch
    for worker_id in worker_ids:
        registry.join_ready(worker_id, epoch)
    decisions: list[Decision] = []
    for worker_id in worker_ids:
        link = None if worker_id == worker_ids[-1] else OutboundLink(transport="memory", rtt_us=5)
        decisions = registry.joined(worker_id, epoch, link, now_s)
    return decisions


def of_kind(kind: type[Kind], decisions: list[Decision]) -> list[Kind]:
    """Return decisions of one kind."""
    return [each for each in decisions if isinstance(each, kind)]


def attached(*workers: tuple[str, int, int]) -> Registry:
    """Make a registry with workers."""
    registry = new_registry()
    for worker_id, first, last in workers:
        registry.attach(hello(worker_id, first, last), 0.0)
    return registry


def pair(*more: tuple[str, int, int]) -> Registry:
    """Make a registry whose workers a and b are a route that stands; others beside."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    stand(registry, "ab")
    for worker_id, first, last in more:
        registry.attach(hello(worker_id, first, last), 0.0)
    return registry
