"""Calls to HiCache and to the scheduler for the command line; a failed one ends the command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar, cast

import grpc
import typer

from chunkmesh.address import HostPort
from chunkmesh.errors import ChunkMeshError, InvalidRequest, NotFound
from chunkmesh.grpc_client import channel
from chunkmesh.status import DETAILS_KEY, from_rpc_error
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2_grpc
from hicache.admin.exits import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_USAGE, fail

ANSWER_S = 10.0
"""For what HiCache answers from memory."""
WORK_S = 600.0
"""For what waits for Redis, or for many pages."""

# Names of the stubs alone: those for asyncio are known to type checkers only.
HiCache: TypeAlias = "hicache_pb2_grpc.HiCacheAsyncStub"
Generation: TypeAlias = "generation_pb2_grpc.GenerationAsyncStub"

_WRONG_ADDRESS = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED})
_T = TypeVar("_T")


def ask(context: typer.Context, call: Callable[[HiCache], Awaitable[_T]]) -> _T:
    """Make one call to HiCache, or several; a fault of it ends the command."""

    async def asked() -> _T:
        async with hicache_of(context) as hicache:
            with told(context.obj, "--hicache"):
                return await call(hicache)

    return run(asked())


def hicache_of(
    context: typer.Context,
) -> contextlib.AbstractAsyncContextManager[HiCache]:
    """Reach for the HiCache that --hicache names."""
    return _stub(context.obj, hicache_pb2_grpc.HiCacheStub)


def scheduler_at(address: HostPort) -> contextlib.AbstractAsyncContextManager[Generation]:
    """Reach for a scheduler."""
    return _stub(address, generation_pb2_grpc.GenerationStub)


@contextlib.contextmanager
def told(address: HostPort, flag: str) -> Iterator[None]:
    """End the command when a call inside fails; flag names the address that was called."""
    try:
        yield
    except grpc.RpcError as error:
        if error.code() in _WRONG_ADDRESS and not _said_by_server(error):
            said = f"no answer from {address} ({error.details()})"
            fail(f"{said}: is it up? Name another with {flag} HOST:PORT", EXIT_ERROR)
        known = from_rpc_error(error)
        fail(str(known), _status(known))


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end; an interrupt ends the command."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextlib.asynccontextmanager
async def _stub(address: HostPort, stub: Callable[[grpc.aio.Channel], _T]) -> AsyncIterator[_T]:
    async with channel(address) as link:
        yield stub(link)


def _status(error: ChunkMeshError) -> int:
    if isinstance(error, NotFound):
        return EXIT_NOT_FOUND
    return EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_ERROR


def _said_by_server(error: grpc.RpcError) -> bool:
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    return any(key == DETAILS_KEY for key, _ in metadata)
