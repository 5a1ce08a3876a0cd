"""A worker's profile is read with suspicion: whoever reaches the internal port can send one."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvalidRequest
from chunkmesh.layers import LayerRange
from chunkmesh.v1 import stage_pb2 as pb
from scheduler.codec import acked_from
from scheduler.latency_fit import LatencyPoint
from scheduler.latency_model import Work
from scheduler.route_codec import hello_from
from stage_worker.codec import hello_message
from stage_worker.identity import Identity
from stage_worker.profile_plan import ProfilePoint, ProfileShape
from tests.scripted_stage import Script, ScriptedStage


def _hello(*points: ProfilePoint) -> pb.Hello:
    """Write what a worker with this profile says."""
    identity = Identity(
        incarnation="w",
        description=ScriptedStage(1, 3, 4, Script()).description,
        host_capacity_tokens=0,
        kv_capacity_tokens=1024,
        peer=None,
        profile=points,
    )
    message = hello_message(identity, data_address="memory:1", transport="memory")
    return pb.AttachRequest.FromString(message.SerializeToString()).hello


def test_points_arrive_as_work() -> None:
    """Both ends must mean the same by a prefix and by what a decode row looks at."""
    chunk = ProfilePoint(shape=ProfileShape(prefix_tokens=100, chunk_tokens=50), compute_us=12_345)
    rows = ProfilePoint(shape=ProfileShape(prefix_tokens=100, num_rows=3), compute_us=1)
    hello = hello_from(_hello(chunk, rows))
    assert LayerRange(first=1, last=3) == hello.layers
    assert hello.profile == (
        LatencyPoint(work=Work.of_chunk(100, 150), ms=12.345),
        LatencyPoint(work=Work.of_rows([101] * 3), ms=0.001),
    )


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (pb.ProfilePoint(compute_us=1), "must have one of both"),
        (pb.ProfilePoint(num_tokens=1, num_rows=1, compute_us=1), "must have one of both"),
        (pb.ProfilePoint(num_tokens=1), "no compute time"),
        (pb.ProfilePoint(num_rows=1 << 31, row_tokens=1, compute_us=1), "at most 4096"),
    ],
)
def test_points_that_cannot_be_are_refused(point: pb.ProfilePoint, text: str) -> None:
    """Rather than a fit of nonsense."""
    hello = _hello()
    hello.profile.append(point)
    with pytest.raises(InvalidRequest, match=text):
        hello_from(hello)


def test_too_many_points_are_refused() -> None:
    """A fit takes time for each."""
    hello = _hello()
    hello.profile.extend([pb.ProfilePoint(num_tokens=1, compute_us=1)] * 513)
    with pytest.raises(InvalidRequest, match="513 profile points, at most 512"):
        hello_from(hello)


def test_acknowledgements_tell_the_compute_time() -> None:
    """The refit lives on it."""
    assert 12.5 == acked_from(pb.Ack(compute_us=12_500), 0).compute_ms
