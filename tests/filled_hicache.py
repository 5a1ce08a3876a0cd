"""A HiCache in this process that holds four pages of one prompt, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import grpc

from chunkmesh.v1 import hicache_pb2 as pb
from chunkmesh.v1 import hicache_pb2_grpc
from tests.hicache_admin import hicache_over, store_pages
from tests.page_samples import chain
from tests.valkey import Valkey

DIGESTS = chain(4)
ALL = pb.Selection(everything=True)


@contextlib.asynccontextmanager
async def hicache_at(valkey: Valkey) -> AsyncIterator[hicache_pb2_grpc.HiCacheAsyncStub]:
    """Run a HiCache and yield a stub to it."""
    async with (
        hicache_over(valkey) as address,
        grpc.aio.insecure_channel(address) as link,
    ):
        yield hicache_pb2_grpc.HiCacheStub(link)


@contextlib.asynccontextmanager
async def filled(valkey: Valkey) -> AsyncIterator[hicache_pb2_grpc.HiCacheAsyncStub]:
    """Run a HiCache that holds DIGESTS."""
    async with hicache_over(valkey) as address:
        await store_pages(valkey, address, DIGESTS)
        async with grpc.aio.insecure_channel(address) as link:
            yield hicache_pb2_grpc.HiCacheStub(link)


async def state_of(hicache: hicache_pb2_grpc.HiCacheAsyncStub) -> pb.NamespaceState:
    """Return the state of the one namespace."""
    (state,) = (await hicache.ListNamespaces(pb.ListNamespacesRequest())).namespaces
    return state


def digest_list(digests: Sequence[bytes]) -> pb.DigestList:
    """Return digests in order."""
    return pb.DigestList(digests=digests)
