"""Calls to HiCache and to the scheduler for the command line; a failed one ends the command."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

import grpc
import typer

from chunkmesh.address import HostPort
from chunkmesh.errors import ChunkMeshError, InvalidRequest, NotFound
from chunkmesh.grpc_client import PLAIN, Access, blocking_channel
from chunkmesh.status import DETAILS_KEY, from_rpc_error
from chunkmesh.trust.access import Role
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2_grpc
from hicache.admin.exits import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_USAGE, fail

ANSWER_S = 10.0
"""For what is answered from memory."""
WORK_S = 600.0
"""For what waits for Redis, or for many pages."""
DAY_S = 86_400.0
"""For what goes through all pages' bytes."""

HiCache = hicache_pb2_grpc.HiCacheStub
Generation = generation_pb2_grpc.GenerationStub

given_access: ContextVar[Access] = ContextVar("given_access", default=PLAIN)
"""How this command proves who calls; set where the flags of all commands are read."""

_WRONG_ADDRESS = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED})
_T = TypeVar("_T")


def ask(context: typer.Context, call: Callable[[HiCache], _T]) -> _T:
    """Make one call to the HiCache that --hicache names, or several; a fault ends the command."""
    access = dataclasses.replace(given_access.get(), server_role=Role.HICACHE, metadata=())
    with _linked(context.obj, access, "--hicache") as link:
        return call(HiCache(link))


def ask_scheduler(address: HostPort, call: Callable[[Generation], _T]) -> _T:
    """Make one call to a scheduler, or several; a fault ends the command."""
    with _linked(address, given_access.get(), "--scheduler") as link:
        return call(Generation(link))


@contextlib.contextmanager
def _linked(address: HostPort, access: Access, flag: str) -> Iterator[grpc.Channel]:
    """Open a channel; flag names the address where a call inside fails."""
    with blocking_channel(address, access) as link:
        try:
            yield link
        except KeyboardInterrupt as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except grpc.RpcError as error:
            if error.code() in _WRONG_ADDRESS and not _said_by_server(error):
                said = f"no answer from {address} ({error.details()})"
                tls = "Socket closed" in (error.details() or "")
                more = "; with TLS it needs --ssl-ca-certs and a certificate" if tls else ""
                fail(f"{said}: is it up? Name another with {flag} HOST:PORT{more}", EXIT_ERROR)
            known = from_rpc_error(error)
            fail(str(known), _status(known))


def _status(error: ChunkMeshError) -> int:
    if isinstance(error, NotFound):
        return EXIT_NOT_FOUND
    return EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_ERROR


def _said_by_server(error: grpc.RpcError) -> bool:
    return any(entry.key == DETAILS_KEY for entry in error.trailing_metadata() or ())
