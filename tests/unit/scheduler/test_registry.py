"""The registry forms routes from workers that come, go and disagree."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from chunkmesh.layers import LayerRange
from scheduler.decisions import (
    RouteStands,
    SendConnect,
    SendJoin,
    SendStandBy,
)
from scheduler.formation import OutboundLink
from scheduler.worker_check import Refused
from tests.hellos import BASE, attached, hello, joins, new_registry, pair, stand


def test_no_route_before_the_layers_are_covered() -> None:
    """A mesh must not serve with a hole in the model, and must name the hole."""
    registry = new_registry()
    told = registry.attach(hello("b", 3, 6), 0.0)
    reason = "no worker holds layers 0-2"
    assert told == [SendStandBy(worker_id="b", reason=reason)]
    assert registry.reason() == reason
    assert registry.missing() == (LayerRange(first=0, last=3),)


def test_a_tiling_forms_a_route_in_layer_order() -> None:
    """Stages follow the layers, whatever the order of arrival; tokens pair neighbours."""
    registry = new_registry()
    registry.attach(hello("b", 3, 6, capacity=100), 0.0)
    first, last = registry.attach(hello("a", 0, 3), 0.0)
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
    assert first.epoch == last.epoch == BASE + 1, "the term is in the upper half"


def test_the_slowest_link_counts() -> None:
    """Chunks are planned for links that all take as long; a round trip is twice the way."""
    registry = attached(("a", 0, 2), ("b", 2, 4), ("c", 4, 6))
    for worker_id in "abc":
        registry.join_ready(worker_id, registry.epoch)
    for worker_id, rtt_us in (("a", 300), ("b", 40_000)):
        link = OutboundLink(transport="grpc", rtt_us=rtt_us)
        registry.joined(worker_id, registry.epoch, link, 0.0)
    (stands,) = registry.joined("c", registry.epoch, None, 0.0)
    assert isinstance(stands, RouteStands)
    assert stands.link_latency_ms == 20.0


def test_the_route_stands_after_all_have_joined() -> None:
    """The first microbatch may only follow the last Joined."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    assert registry.reason() == "the route is forming"
    assert registry.join_ready("a", registry.epoch) == []
    connects = registry.join_ready("b", registry.epoch)
    assert connects == [SendConnect(worker_id=each, epoch=registry.epoch) for each in "ab"]
    assert registry.joined("b", registry.epoch, None, 0.0) == []
    (decision,) = registry.joined("a", registry.epoch, None, 0.0)
    assert isinstance(decision, RouteStands)
    assert decision.worker_ids == ("a", "b")
    assert registry.reason() == ""


@pytest.mark.parametrize(("first", "last"), [(2, 6), (0, 2), (1, 3), (2, 4)])
def test_a_partly_overlapping_range_is_refused(first: int, last: int) -> None:
    """A worker that does not fit the accepted split must not disturb the mesh."""
    registry = attached(("a", 0, 3))
    with pytest.raises(Refused, match="partly overlap"):
        registry.attach(hello("b", first, last), 0.0)
    assert list(registry.workers) == ["a"]


def test_a_refused_worker_leaves_a_standing_route_alone() -> None:
    """The same for a range that crosses two stages of the mesh that serves."""
    registry = pair()
    with pytest.raises(Refused, match="partly overlap"):
        registry.attach(hello("x", 2, 4), 1.0)
    assert registry.reason() == ""
    assert registry.tick(2.0) == []


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
    registry = attached(("a", 0, 3))
    with pytest.raises(Refused, match=text):
        registry.attach(dataclasses.replace(hello("b", 3, 6), **change), 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"layer_digests": (b"x", b"y", b"z")}, {"embedding_digest": b"x"}]
)
def test_a_replica_with_other_weights_is_refused(change: dict[str, object]) -> None:
    """A spare that takes over must continue with the same model."""
    registry = attached(("a", 0, 3))
    other = dataclasses.replace(hello("b", 0, 3), **change)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="weights of layers 0-2"):
        registry.attach(other, 0.0)


def test_replicas_form_one_more_route_as_soon_as_they_tile() -> None:
    """More workers are more pipelines; those that stand are not disturbed."""
    registry = pair()
    (told,) = registry.attach(hello("c", 0, 3), 1.0)
    assert told == SendStandBy(worker_id="c", reason=""), "a spare of a mesh that serves"
    assert joins(registry.attach(hello("d", 3, 6), 1.0)) == {BASE + 2: ["c", "d"]}
    (stands,) = stand(registry, "cd")
    assert isinstance(stands, RouteStands)
    assert [route.epoch for route in registry.standing()] == [BASE + 1, BASE + 2]


def test_several_routes_form_at_once() -> None:
    """Workers that wait for one last layer range are as many routes when it comes twice."""
    registry = attached(("a", 0, 3), ("b", 0, 3), ("c", 3, 6))
    assert joins(registry.attach(hello("d", 3, 6), 0.0)) == {BASE + 2: ["b", "d"]}


def test_the_fingerprint_depends_on_weights_and_not_on_the_split() -> None:
    """Pages written by a mesh of two stages must be found by a mesh of three."""
    prints = []
    for split in ((0, 3, 6), (0, 2, 4, 6)):
        registry = new_registry()
        for first, last in itertools.pairwise(split):
            registry.attach(hello(f"{first}", first, last), 0.0)
        prints.append(registry.fingerprint())
    assert prints[0] == prints[1] != b""


@pytest.mark.parametrize(
    ("worker_id", "change"),
    [
        ("a", {"layer_digests": (b"0", b"x", b"2")}),
        ("b", {"layer_digests": (b"3", b"4", b"x")}),
        ("a", {"embedding_digest": b"x"}),
        ("b", {"head_digest": b"x"}),
        ("both", {"config_digest": b"x"}),
    ],
    ids=str,
)
def test_the_fingerprint_is_of_all_weights_and_of_the_config(
    worker_id: str, change: dict[str, Any]
) -> None:
    """Else pages of other weights would be found, and outputs go on that others have begun."""
    prints = []
    for changed in (False, True):
        registry = new_registry()
        for each in (hello("a", 0, 3), hello("b", 3, 6)):
            is_it = changed and worker_id in {each.worker_id, "both"}
            registry.attach(dataclasses.replace(each, **change) if is_it else each, 0.0)
        prints.append(registry.fingerprint())
    assert prints[0] != prints[1]
    assert b"" not in prints
