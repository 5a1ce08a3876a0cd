"""Talks to a mesh's scheduler for the command line: plain calls, errors of our own tree."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

import grpc

from chunkmesh.address import HostPort
from chunkmesh.errors import ChunkMeshError, Unavailable
from chunkmesh.grpc_client import PLAIN, Access, blocking_channel
from chunkmesh.retrying import Servers
from chunkmesh.status import DETAILS_KEY, from_rpc_error
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2, hicache_pb2_grpc

_UNARY_TIMEOUT_S = 30.0

_Answer = TypeVar("_Answer")


class GenerationClient:
    """Channels to the schedulers of one mesh, closed with the context."""

    def __init__(self, server: HostPort | Servers, access: Access = PLAIN) -> None:
        """Connect on first use; access is how a single server is reached."""
        if isinstance(server, HostPort):
            server = Servers((server,), retry_for_s=0.0, access=access)
        self._servers = server
        self._channels = {
            address: blocking_channel(address, server.access) for address in server.addresses
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for channel in self._channels.values():
            channel.close()

    def generate(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None
    ) -> Generator[pb.GenerateResponse, None, None]:
        """Run a request and yield what comes; closing the iterator cancels the call.

        Raises:
            ChunkMeshError: what the scheduler says, that nobody answers, or not within timeout_s.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        attempts = self._servers.begin(_num_outputs(request))
        has_begun = False
        while True:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            call = self._stub(attempts.server).Generate(request, timeout=left_s)
            try:
                for reply in call:
                    attempts.heard(reply)
                    has_begun = True
                    yield reply
            except grpc.RpcError as error:
                if attempts.has_all():
                    return
                pause_s = attempts.pause_s(error)
                if pause_s is None:
                    if has_begun and _is_unheard(error):
                        raise _broken_off(error, attempts.asked) from error
                    raise _own_error(error, attempts.asked) from error
            else:
                attempts.answered()
                return
            finally:
                cast("grpc.Call", call).cancel()
            time.sleep(pause_s)

    def model_info(self) -> pb.GetModelInfoResponse:
        """Describe the model. Raises as generate does."""
        return self._call(
            lambda stub: stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=_UNARY_TIMEOUT_S)
        )

    def server_info(self) -> pb.GetServerInfoResponse:
        """Describe the mesh: of several schedulers by one that is ready, if there is one.

        Raises as generate does.
        """
        infos: list[pb.GetServerInfoResponse] = []
        for server in self._servers.addresses:
            try:
                info = self._stub(server).GetServerInfo(
                    pb.GetServerInfoRequest(), timeout=_UNARY_TIMEOUT_S
                )
            except grpc.RpcError as error:
                if server == self._servers.addresses[-1] and not infos:
                    raise _own_error(error, server) from error
            else:
                infos.append(info)
                if info.ready:
                    self._servers.serves(server)
                    return info
        return infos[0]

    def timelines(
        self, request_ids: Sequence[str] = (), *, last: int = 0
    ) -> list[pb.GetTimelinesResponse]:
        """Return when the stages worked on these requests, or on the last; by arrival.

        Without request_ids, last counts; 0 is all that are kept. Raises as generate does.
        """
        request = pb.GetTimelinesRequest(request_ids=request_ids, last=last)
        return self._call(lambda stub: list(stub.GetTimelines(request, timeout=_UNARY_TIMEOUT_S)))

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
        return self._call(lambda stub: stub.Tokenize(asked, timeout=_UNARY_TIMEOUT_S).input_ids)

    def count_tokens(self, chat: pb.Chat) -> int:
        """Return the length of a chat's prompt in tokens. Raises as generate does."""
        return len(self.prompt_ids(pb.GenerateRequest(chat=chat)))

    def _call(self, call: Callable[[generation_pb2_grpc.GenerationStub], _Answer]) -> _Answer:
        """Make a call that changes nothing."""
        attempts = self._servers.begin()
        while True:
            try:
                answer = call(self._stub(attempts.server))
            except grpc.RpcError as error:
                pause_s = attempts.pause_s(error)
                if pause_s is None:
                    raise _own_error(error, attempts.asked) from error
            else:
                attempts.answered()
                return answer
            time.sleep(pause_s)

    def _stub(self, server: HostPort) -> generation_pb2_grpc.GenerationStub:
        return generation_pb2_grpc.GenerationStub(self._channels[server])


def _num_outputs(request: pb.GenerateRequest) -> int:
    return request.sampling_params.n or 1


def count_stored_pages(hicache: HostPort, access: Access = PLAIN) -> int:
    """Return how many pages a hicache-server knows, those of some layers only included.

    Raises:
        ChunkMeshError: it does not answer.
    """
    with blocking_channel(hicache, access) as channel:
        stub = hicache_pb2_grpc.HiCacheStub(channel)
        try:
            stats = stub.GetStats(hicache_pb2.GetStatsRequest(), timeout=_UNARY_TIMEOUT_S)
        except grpc.RpcError as error:
            raise _own_error(error, hicache) from error
    return stats.num_pages + stats.num_partial_pages


def _is_unheard(error: grpc.RpcError) -> bool:
    """Return whether it is gRPC who says that nobody is there."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and not _said_by_server(error)


def _broken_off(error: grpc.RpcError, server: HostPort) -> Unavailable:
    return Unavailable(
        f"the answer of {server} broke off ({error.details()}): what has come is not whole, send"
        " the request again"
    )


def _own_error(error: grpc.RpcError, server: HostPort) -> ChunkMeshError:
    if _is_unheard(error):
        details = error.details() or ""
        tls = "; a mesh with TLS needs --ssl-ca-certs FILE" if "Socket closed" in details else ""
        return Unavailable(
            f"no answer from {server} ({details}): start a mesh with"
            f" `chunkmesh up --model-path demo`, or name another with --server HOST:PORT{tls}"
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Unavailable(
            f"{server} does not serve chunkmesh.v1.Generation: name the scheduler's users' port"
            " (50051 by default)"
        )
    return from_rpc_error(error)


def _said_by_server(error: grpc.RpcError) -> bool:
    return any(entry.key == DETAILS_KEY for entry in error.trailing_metadata() or ())
