"""Talks to a mesh's scheduler for the command line: plain calls, errors of our own tree."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, cast

import grpc

from chunkmesh.address import HostPort
from chunkmesh.errors import Unavailable
from chunkmesh.grpc_client import PLAIN, Access, blocking_channel
from chunkmesh.status import DETAILS_KEY, from_rpc_error
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2, hicache_pb2_grpc

_UNARY_TIMEOUT_S = 30.0


class GenerationClient:
    """One channel to a scheduler, closed with the context."""

    def __init__(self, server: HostPort, access: Access = PLAIN) -> None:
        """Connect on first use."""
        self._server = server
        self._channel = blocking_channel(server, access)
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channel.close()

    def generate(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None
    ) -> Generator[pb.GenerateResponse, None, None]:
        """Run a request and yield what comes; closing the iterator cancels the call.

        Raises:
            ChunkMeshError: what the scheduler says, that nobody answers, or not within timeout_s.
        """
        call = self._stub.Generate(request, timeout=timeout_s)
        try:
            with _own_errors(self._server):
                yield from call
        finally:
            cast("grpc.Call", call).cancel()

    def model_info(self) -> pb.GetModelInfoResponse:
        """Describe the model. Raises as generate does."""
        with _own_errors(self._server):
            return self._stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=_UNARY_TIMEOUT_S)

    def server_info(self) -> pb.GetServerInfoResponse:
        """Describe the mesh. Raises as generate does."""
        with _own_errors(self._server):
            return self._stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=_UNARY_TIMEOUT_S)

    def timelines(
        self, request_ids: Sequence[str] = (), *, last: int = 0
    ) -> list[pb.GetTimelinesResponse]:
        """Return when the stages worked on these requests, or on the last; by arrival.

        Without request_ids, last counts; 0 is all that are kept. Raises as generate does.
        """
        request = pb.GetTimelinesRequest(request_ids=request_ids, last=last)
        with _own_errors(self._server):
            return list(self._stub.GetTimelines(request, timeout=_UNARY_TIMEOUT_S))

    def prompt_ids(self, request: pb.GenerateRequest) -> Sequence[int]:
        """Return the token ids of a request's prompt. Raises as generate does."""
        match request.WhichOneof("input"):
            case "input_ids_le":
                return struct.unpack(f"<{len(request.input_ids_le) // 4}I", request.input_ids_le)
            case "input_ids":
                return request.input_ids.ids
            case "chat":
                asked = pb.TokenizeRequest(chat=request.chat)
            case _:
                asked = pb.TokenizeRequest(text=request.text)
        with _own_errors(self._server):
            return self._stub.Tokenize(asked, timeout=_UNARY_TIMEOUT_S).input_ids

    def count_tokens(self, chat: pb.Chat) -> int:
        """Return the length of a chat's prompt in tokens. Raises as generate does."""
        return len(self.prompt_ids(pb.GenerateRequest(chat=chat)))


def count_stored_pages(hicache: HostPort, access: Access = PLAIN) -> int:
    """Return how many pages a hicache-server knows, those of some layers only included.

    Raises:
        ChunkMeshError: it does not answer.
    """
    with blocking_channel(hicache, access) as channel:
        stub = hicache_pb2_grpc.HiCacheStub(channel)
        with _own_errors(hicache):
            stats = stub.GetStats(hicache_pb2.GetStatsRequest(), timeout=_UNARY_TIMEOUT_S)
    return stats.num_pages + stats.num_partial_pages


@contextmanager
def _own_errors(server: HostPort) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE and not _said_by_server(error):
            raise Unavailable(
                f"no answer from {server} ({error.details()}): start a mesh with"
                " `chunkmesh up --model-path demo`, or name another with --server HOST:PORT"
            ) from error
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise Unavailable(
                f"{server} does not serve chunkmesh.v1.Generation: name the scheduler's users' port"
                " (50051 by default)"
            ) from error
        raise from_rpc_error(error) from error


def _said_by_server(error: grpc.RpcError) -> bool:
    return any(entry.key == DETAILS_KEY for entry in error.trailing_metadata() or ())
