"""An activation whose bytes change between two stages."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from chunkmesh.grpc_client import channel
from chunkmesh.transports import header
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.worker_processes import worker_processes

_DAMAGED = 8
"""In the middle of the output: its prompt is four chunks."""
_REQUEST = pb.GenerateRequest(
    input_ids=pb.TokenIds(ids=range(1, 251)),
    sampling_params=pb.SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True),
)


def damage_one() -> None:
    """Let one activation that this process sends not be what its checksum says."""
    right, numbers = header.checksum, itertools.count(1)
    header.checksum = lambda payload: right(payload) ^ (next(numbers) == _DAMAGED)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["ucx", "grpc"])
async def test_a_damaged_activation_is_no_token(tiny: Path, tmp_path: Path, transport: str) -> None:
    """The stage behind refuses it, the route is formed anew, and the client gets the same ids."""
    way = f"--transport={transport}"
    async with worker_processes(tiny, tmp_path) as mesh:
        first = mesh.start("0-1", way, prepare=damage_one)
        last = mesh.start("2-3", way)
        await mesh.until_route(first, last)
        (before,) = mesh.routes
        async with channel(mesh.scheduler.address) as link:
            stub = generation_pb2_grpc.GenerationStub(link)
            answers = [
                [each async for each in stub.Generate(_REQUEST, timeout=60)][-1].complete.output_ids
                for _ in range(2)
            ]
        assert [before + 1] == list(mesh.routes)
        counts = mesh.loop.engine.recoveries.counts
        assert (1, 1) == (counts.routes["fault"], counts.outputs)
        assert 12 == len(answers[0])
        assert answers[0] == answers[1]
