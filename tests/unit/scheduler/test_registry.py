"""The registry forms routes from workers that come, go and disagree."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from chunkmesh.layers import LayerRange
from scheduler.registry import (
    Phase,
    Refused,
    Registry,
    RouteBroke,
    RouteStands,
    SendConnect,
    SendJoin,
    WorkerHello,
)


def new_registry(layers: int = 6) -> Registry:
    """Make a registry whose pairing tokens count up."""
    tokens = (bytes([n]) * 16 for n in range(1, 200))
    return Registry(
        model_layers=layers, page_tokens=16, new_token=lambda: next(tokens), retry_s=1.0
    )


def hello(worker_id: str, first: int, last: int, *, capacity: int = 160) -> WorkerHello:
    """Describe a worker of a model of six layers."""
    return WorkerHello(
        worker_id=worker_id,
        protocol_version=1,
        layers=LayerRange(first=first, last=last),
        model_layers=6,
        layer_digests=tuple(bytes([layer]) for layer in range(first, last)),
        embedding_digest=b"e" if first == 0 else b"",
        head_digest=b"h" if last == 6 else b"",
        config_digest=b"c",
        dtype="float32",
        hidden_size=8,
        kv_bytes_per_token=64,
        kv_capacity_tokens=capacity,
        data_address=f"host:{worker_id}",
        transport="memory",
        device="cpu",
    )


def stand(registry: Registry, worker_ids: list[str]) -> list[object]:
    """Answer Join and Connect for all workers; return the last decisions."""
    decisions: list[object] = []
    for worker_id in worker_ids:
        decisions = list(registry.join_ready(worker_id, registry.epoch))
    assert [type(each) for each in decisions] == [SendConnect] * len(worker_ids)
    for worker_id in worker_ids:
        decisions = list(registry.joined(worker_id, registry.epoch, "memory", 5))
    return decisions


def test_no_route_before_the_layers_are_covered() -> None:
    """A mesh must not serve with a hole in the model, and must name the hole."""
    registry = new_registry()
    assert registry.attach(hello("b", 3, 6), 0.0) == []
    assert registry.reason() == "no worker holds layers 0-2"
    assert registry.missing() == (LayerRange(first=0, last=3),)


def test_a_tiling_forms_a_route_in_layer_order() -> None:
    """Stages follow the layers, whatever the order of arrival; tokens pair neighbours."""
    registry = new_registry()
    registry.attach(hello("b", 3, 6, capacity=100), 0.0)
    joins = registry.attach(hello("a", 0, 3), 0.0)
    assert [type(join) for join in joins] == [SendJoin, SendJoin]
    first, last = joins
    assert isinstance(first, SendJoin)
    assert isinstance(last, SendJoin)
    assert (
        first.worker_id,
        first.stage_index,
        first.next_address,
        first.inbound_token,
    ) == ("a", 0, "host:b", b"")
    assert first.outbound_token == last.inbound_token != b""
    assert (
        last.worker_id,
        last.stage_index,
        last.next_address,
        last.outbound_token,
    ) == ("b", 1, "", b"")
    assert first.num_pages == 6, "the smallest pool counts: 100 tokens are 6 pages of 16"


def test_the_slowest_link_counts() -> None:
    """Chunks are planned for links that all take as long; a round trip is twice the way."""
    registry = new_registry()
    assert 0.0 == registry.link_latency_ms()
    for worker_id, first, last in (("a", 0, 2), ("b", 2, 4), ("c", 4, 6)):
        registry.attach(hello(worker_id, first, last), 0.0)
    for worker_id in ("a", "b", "c"):
        registry.join_ready(worker_id, registry.epoch)
    for worker_id, rtt_us in (("a", 300), ("b", 40_000)):
        registry.joined(worker_id, registry.epoch, "grpc", rtt_us)
    registry.joined("c", registry.epoch, "", 0)
    assert 20.0 == registry.link_latency_ms()


def test_the_route_stands_after_all_have_joined() -> None:
    """The first microbatch may only follow the last Joined."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    assert registry.reason() != ""
    (decision,) = stand(registry, ["a", "b"])
    assert isinstance(decision, RouteStands)
    assert decision.worker_ids == ("a", "b")
    assert registry.reason() == ""


@pytest.mark.parametrize(("first", "last"), [(2, 6), (0, 2), (1, 3), (2, 4)])
def test_a_partly_overlapping_range_is_refused(first: int, last: int) -> None:
    """A worker that does not fit the accepted split must not disturb the mesh."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    with pytest.raises(Refused, match="partly overlap"):
        registry.attach(hello("b", first, last), 0.0)
    assert list(registry.workers) == ["a"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"protocol_version": 2}, "protocol version 2"),
        ({"model_layers": 7}, "7 layers"),
        ({"dtype": "bfloat16"}, "dtype is bfloat16, .* layers 0-2 is float32"),
        ({"hidden_size": 16}, "hidden size is 16, .* is 8"),
        ({"config_digest": b"x"}, r"config\.json"),
        ({"transport": "ucx"}, "transport is ucx, .* is memory"),
        ({"kv_capacity_tokens": 15}, "less than one page"),
    ],
)
def test_a_worker_that_disagrees_is_refused_with_the_reason(
    change: dict[str, object], text: str
) -> None:
    """Stages of different models or settings would compute nonsense together."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    with pytest.raises(Refused, match=text):
        registry.attach(dataclasses.replace(hello("b", 3, 6), **change), 0.0)  # type: ignore[arg-type]


def test_a_replica_with_other_weights_is_refused() -> None:
    """A spare that takes over must continue with the same model."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    other = dataclasses.replace(hello("b", 0, 3), layer_digests=(b"x", b"y", b"z"))
    with pytest.raises(Refused, match="weights of layers 0-2"):
        registry.attach(other, 0.0)


def test_a_lost_worker_breaks_the_route_and_a_spare_forms_the_next() -> None:
    """A loss voids the epoch; the spare joins a higher one at once."""
    registry = new_registry()
    for worker_id, first, last in (("a", 0, 3), ("b", 3, 6), ("spare", 3, 6)):
        registry.attach(hello(worker_id, first, last), 0.0)
    stand(registry, ["a", "b"])
    broke, *joins = registry.lose("b", "gone", 1.0)
    assert isinstance(broke, RouteBroke)
    assert [each.worker_id for each in joins if isinstance(each, SendJoin)] == ["a", "spare"]
    assert registry.epoch == 2


def test_loss_of_a_spare_changes_nothing() -> None:
    """Only workers of the route carry requests."""
    registry = new_registry()
    for worker_id, first, last in (("a", 0, 3), ("b", 3, 6), ("spare", 3, 6)):
        registry.attach(hello(worker_id, first, last), 0.0)
    stand(registry, ["a", "b"])
    assert registry.lose("spare", "gone", 1.0) == []
    assert registry.reason() == ""


def test_a_fault_is_followed_by_a_pause() -> None:
    """A link that cannot stand must not make the mesh form routes without end."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    stand(registry, ["a", "b"])
    (broke,) = registry.fault("a", 1, "link broke", 10.0)
    assert isinstance(broke, RouteBroke)
    assert registry.tick(10.9) == []
    assert len(registry.tick(11.0)) == 2
    assert registry.epoch == 2


def test_answers_of_an_old_epoch_are_ignored() -> None:
    """A late JoinReady must not open a route that its sender has left."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    registry.fault("a", 1, "x", 0.0)
    registry.tick(1.0)
    assert registry.join_ready("a", 1) == []
    assert registry.join_ready("b", 1) == []
    assert registry.phase is Phase.JOINING


def test_a_route_that_does_not_form_in_time_is_tried_again() -> None:
    """A worker that never answers must not block the mesh for ever."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    assert registry.tick(14.0) == []
    assert registry.tick(15.0) == []
    assert registry.phase is Phase.NONE
    assert len(registry.tick(16.0)) == 2


def test_the_fingerprint_depends_on_weights_and_not_on_the_split() -> None:
    """Pages written by a mesh of two stages must be found by a mesh of three."""
    prints = []
    for split in ((0, 3, 6), (0, 2, 4, 6)):
        registry = new_registry()
        for first, last in itertools.pairwise(split):
            registry.attach(hello(f"{first}", first, last), 0.0)
        prints.append(registry.fingerprint())
    assert prints[0] == prints[1] != b""


def _pool_ids(registry: Registry, worker_ids: list[str]) -> tuple[str, ...]:
    """Let the route form; return the names of its stages' memory."""
    (stands,) = stand(registry, worker_ids)
    assert isinstance(stands, RouteStands)
    return stands.pool_ids


def test_pages_outlive_a_link_that_broke() -> None:
    """The same workers with as many pages keep their contents over an epoch."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    first = _pool_ids(registry, ["a", "b"])
    registry.fault("a", 1, "link broke", 10.0)
    registry.tick(11.0)
    assert _pool_ids(registry, ["a", "b"]) == first
    assert len(set(first)) == 2


def test_pages_do_not_outlive_a_join_with_another_number_of_them() -> None:
    """Even if that route never stood: the worker has made a new pool for it."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    registry.attach(hello("small", 3, 6, capacity=32), 0.0)
    first = _pool_ids(registry, ["a", "b"])
    registry.lose("b", "gone", 1.0)
    registry.lose("small", "gone, too", 2.0)
    registry.attach(hello("c", 3, 6), 3.0)
    assert _pool_ids(registry, ["a", "c"])[0] != first[0]


def test_who_attaches_again_has_served_others_meanwhile() -> None:
    """Between its streams a worker may have been another scheduler's stage."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    first = _pool_ids(registry, ["a", "b"])
    registry.lose("b", "its stream ended", 1.0)
    registry.attach(hello("b", 3, 6), 2.0)
    second = _pool_ids(registry, ["a", "b"])
    assert second[0] == first[0]
    assert second[1] != first[1]


@pytest.mark.parametrize(("host_tokens", "num_pages"), [((100, 70), 4), ((100, 0), 0)])
def test_the_smallest_host_memory_counts(host_tokens: tuple[int, int], num_pages: int) -> None:
    """A host page means the same page on every stage."""
    registry = new_registry()
    for name, layers, tokens in zip("ab", ((0, 3), (3, 6)), host_tokens, strict=True):
        told = dataclasses.replace(hello(name, *layers), host_capacity_tokens=tokens)
        registry.attach(told, 0.0)
    (stands,) = stand(registry, ["a", "b"])
    assert isinstance(stands, RouteStands)
    assert stands.num_host_pages == num_pages
