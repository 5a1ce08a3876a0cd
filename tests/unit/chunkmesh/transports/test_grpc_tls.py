"""Links over gRPC with TLS: both ends are workers, by their certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation
from chunkmesh.transports.grpc_stream import GrpcTransport
from chunkmesh.trust.access import Role
from chunkmesh.trust.tls_files import TlsFiles
from deploy.certs.certificates import Authority
from tests.certificates import mesh_files, new_authority
from tests.transport_pairs import make_spec


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Make the mesh's."""
    return new_authority(tmp_path / "mesh")


def _transport(tls: TlsFiles | None) -> GrpcTransport:
    return GrpcTransport("127.0.0.1:0", handshake_timeout_s=2, tls=tls)


async def test_an_activation_passes(authority: Authority) -> None:
    """As in plain text."""
    tls = mesh_files(authority, Role.WORKER)
    one, two = _transport(tls), _transport(tls)
    await one.start()
    await two.start()
    spec = make_spec()
    accepting = asyncio.create_task(two.accept(spec))
    sender = await one.dial(two.address, spec)
    receiver = await accepting
    payload = torch.arange(spec.max_bytes, dtype=torch.int64).to(torch.uint8)
    into = torch.zeros(spec.max_bytes, dtype=torch.uint8)
    receiving = asyncio.create_task(receiver.receive(into))
    await sender.send(Activation(seq_no=0, num_tokens=spec.max_tokens), payload)
    await receiving
    assert torch.equal(payload, into)
    await one.close()
    await two.close()


@pytest.mark.parametrize("role", [Role.CLIENT, Role.ADMIN, Role.SCHEDULER, None])
async def test_who_is_no_worker_gets_no_link_even_with_the_token(
    authority: Authority, role: Role | None
) -> None:
    """A token that leaked opens nothing; the right worker still comes through."""
    worker = _transport(mesh_files(authority, Role.WORKER))
    await worker.start()
    spec = make_spec()
    accepting = asyncio.create_task(worker.accept(spec))
    stranger = _transport(None if role is None else mesh_files(authority, role))
    with pytest.raises(LinkError):
        await stranger.dial(worker.address, spec)
    assert not accepting.done()
    right = _transport(mesh_files(authority, Role.WORKER))
    await right.dial(worker.address, spec)
    await accepting
    for each in (stranger, right, worker):
        await each.close()
