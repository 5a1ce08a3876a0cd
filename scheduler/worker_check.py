"""Whether a worker fits the model and the workers that are attached already. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from chunkmesh import PROTOCOL_VERSION
from scheduler.worker_hello import WorkerHello


class Refused(Exception):
    """A worker cannot be part of this mesh; the text says why."""


def check_worker(
    hello: WorkerHello, others: Iterable[WorkerHello], *, model_layers: int, page_tokens: int
) -> None:
    """Look whether a worker fits the model and others.

    Raises:
        Refused: it does not.
    """
    if hello.protocol_version != PROTOCOL_VERSION:
        raise Refused(
            f"protocol version {hello.protocol_version}, this scheduler speaks "
            f"{PROTOCOL_VERSION}: run the same ChunkMesh version everywhere"
        )
    if hello.model_layers != model_layers:
        raise Refused(
            f"its model has {hello.model_layers} layers, the scheduler's has "
            f"{model_layers}: give both the same --model-path"
        )
    if hello.kv_capacity_tokens < page_tokens:
        raise Refused(
            f"KV capacity of {hello.kv_capacity_tokens} tokens is less than one page of "
            f"{page_tokens}"
        )
    for other in others:
        _check_agree(hello, other)


def _check_agree(hello: WorkerHello, other: WorkerHello) -> None:
    """Raise Refused unless two workers can serve one model together."""
    mine, theirs = hello.layers, other.layers
    if mine != theirs and mine.first < theirs.last and theirs.first < mine.last:
        raise Refused(
            f"layers {mine} partly overlap layers {theirs} of an attached worker: "
            "ranges must be the same or apart"
        )
    for name in ("dtype", "hidden_size", "transport"):
        mine_has, theirs_has = getattr(hello, name), getattr(other, name)
        if mine_has != theirs_has:
            raise Refused(
                f"its {name.replace('_', ' ')} is {mine_has}, that of the worker with layers "
                f"{theirs} is {theirs_has}: start both with the same model and settings"
            )
    if hello.config_digest != other.config_digest:
        raise Refused(
            f"its config.json says something else than that of the worker with layers {theirs}: "
            "start both with the same model"
        )
    if mine == theirs and _weights(hello) != _weights(other):
        raise Refused(f"its weights of layers {mine} differ from those of an attached worker")


def _weights(hello: WorkerHello) -> tuple[object, ...]:
    """Return what replicas must have in common."""
    return (hello.layer_digests, hello.embedding_digest, hello.head_digest)
