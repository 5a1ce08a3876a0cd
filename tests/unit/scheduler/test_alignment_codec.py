"""What length a worker's device prefers reaches the scheduler, within limits."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.errors import InvalidRequest
from chunkmesh.v1 import stage_pb2 as pb
from scheduler.route_codec import hello_from
from stage_worker.codec import hello_message
from stage_worker.identity import Identity
from tests.scripted_stage import Script, ScriptedStage


def _hello(chunk_alignment_tokens: int) -> pb.Hello:
    """Write what a worker says that prefers a length."""
    description = dataclasses.replace(
        ScriptedStage(1, 3, 4, Script()).description, chunk_alignment_tokens=chunk_alignment_tokens
    )
    identity = Identity(
        incarnation="w",
        description=description,
        kv_capacity_tokens=1024,
        host_capacity_tokens=0,
        peer=None,
    )
    message = hello_message(identity, data_address="memory:1", transport="memory")
    return pb.AttachRequest.FromString(message.SerializeToString()).hello


@pytest.mark.parametrize("tokens", [0, 512, 1 << 20])
def test_a_preferred_length_arrives(tokens: int) -> None:
    """0 where no length is better."""
    assert tokens == hello_from(_hello(tokens)).chunk_alignment_tokens


def test_a_length_beyond_reason_is_refused() -> None:
    """Chunks of a multiple of it could never be cut."""
    with pytest.raises(InvalidRequest, match="chunk_alignment_tokens is 1048577, at most 1048576"):
        hello_from(_hello((1 << 20) + 1))
