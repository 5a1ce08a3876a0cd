"""Clients of several schedulers: what they send again, what they must not, and to whom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.errors import ChunkMeshError, InvalidRequest, StageUnavailable, Standby, Unavailable
from chunkmesh.ports import bind_unused
from chunkmesh.retrying import Servers
from chunkmesh.v1 import generation_pb2 as pb
from tests.cli_run import run_cli
from tests.fake_generation import FakeGeneration, script

LOST = Unavailable("the scheduler has gone", retry_after_s=0.01)


class Breaking(FakeGeneration):
    """Sends so many replies of the first call, then fails it; later calls run to their end."""

    def __init__(self, num_replies: int) -> None:
        """Break behind so many replies."""
        super().__init__()
        self._num_replies = num_replies

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Play the script, or its begin."""
        is_first = not self.requests
        num_sent = 0
        async for reply in super().Generate(request, context):
            if is_first and num_sent == self._num_replies:
                self.error = LOST
                try:
                    await self._fail_if_told(context)
                finally:
                    self.error = None
            yield reply
            num_sent += 1
        if is_first and num_sent == self._num_replies:
            self.error = LOST
            await self._fail_if_told(context)


class ShuttingDown(FakeGeneration):
    """Ends its first call as gRPC does one that no servicer has seen when a server shuts down."""

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Play the script but for the first call."""
        if not self.requests:
            self.requests.append(request)
            await context.abort(grpc.StatusCode.CANCELLED)
        async for reply in super().Generate(request, context):
            yield reply


@contextlib.contextmanager
def closing(server: FakeGeneration) -> Iterator[FakeGeneration]:
    """End a server."""
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def active() -> Iterator[FakeGeneration]:
    """Yield a scheduler that serves."""
    with closing(FakeGeneration()) as server:
        yield server


@pytest.fixture
def standby(active: FakeGeneration) -> Iterator[FakeGeneration]:
    """Yield one that stands by."""
    with closing(FakeGeneration()) as server:
        server.error = Standby("standby; active is x", retry_after_s=0.02, active=active.address)
        server.info = pb.GetServerInfoResponse(reason="standby; active is x")
        yield server


def client(*servers: FakeGeneration, retry_for_s: float = 5.0) -> GenerationClient:
    """Return a client of these."""
    addresses = [HostPort.parse(server.address) for server in servers]
    return GenerationClient(Servers(addresses, retry_for_s=retry_for_s))


def test_a_standby_is_passed_over(standby: FakeGeneration, active: FakeGeneration) -> None:
    """And the next call begins at the one that served."""
    with client(standby, active) as to_mesh:
        for _ in range(2):
            assert script() == list(to_mesh.generate(pb.GenerateRequest(text="x")))
    assert (1, 2) == (len(standby.requests), len(active.requests))


def test_a_scheduler_that_is_gone_is_passed_over(active: FakeGeneration) -> None:
    """Nobody listens there, which is told at once."""
    with bind_unused("127.0.0.1") as bound:
        nobody = HostPort(host="127.0.0.1", port=bound.getsockname()[1])
    servers = Servers((nobody, HostPort.parse(active.address)), retry_for_s=5.0)
    with GenerationClient(servers) as to_mesh:
        assert script() == list(to_mesh.generate(pb.GenerateRequest(text="x")))


def test_the_info_is_that_of_the_scheduler_that_is_ready(
    standby: FakeGeneration, active: FakeGeneration
) -> None:
    """A standby answers, but knows nothing of the mesh."""
    with client(standby, active) as to_mesh:
        assert active.info == to_mesh.server_info()
    with client(standby) as to_mesh:
        assert "standby; active is x" == to_mesh.server_info().reason


def test_a_call_that_has_only_told_progress_is_made_again() -> None:
    """Nobody has read a token of it."""
    with closing(Breaking(1)) as server, client(server) as to_mesh:
        replies = list(to_mesh.generate(pb.GenerateRequest(text="x")))
    assert [script()[0], *script()] == replies
    assert 2 == len(server.requests)


def test_a_call_that_a_server_cancels_is_made_again() -> None:
    """It waited at the door of a scheduler that shut down, which gRPC does not call UNAVAILABLE."""
    with closing(ShuttingDown()) as server, client(server) as to_mesh:
        assert script() == list(to_mesh.generate(pb.GenerateRequest(text="x")))
    assert 2 == len(server.requests)


def test_a_call_that_has_brought_a_token_is_not_made_again() -> None:
    """The same output twice would be worse than an error."""
    with closing(Breaking(2)) as server, client(server) as to_mesh:
        replies = to_mesh.generate(pb.GenerateRequest(text="x"))
        assert script()[:2] == [next(replies), next(replies)]
        with pytest.raises(Unavailable, match="the scheduler has gone"):
            next(replies)
    assert 1 == len(server.requests)


def test_an_answer_that_came_whole_is_no_error() -> None:
    """A scheduler may be killed between its last word and the end of the call."""
    with closing(Breaking(len(script()))) as server, client(server) as to_mesh:
        assert script() == list(to_mesh.generate(pb.GenerateRequest(text="x")))
    assert 1 == len(server.requests)


@pytest.mark.parametrize(
    ("error", "retry_for_s"),
    [
        (InvalidRequest("top_k -1"), 5.0),
        (StageUnavailable("no worker holds layers 0-3", retry_after_s=2.0), 1.0),
        (StageUnavailable("no worker holds layers 0-3", retry_after_s=0.01), 0.0),
    ],
)
def test_what_trying_again_cannot_help_fails_at_once(
    active: FakeGeneration, error: ChunkMeshError, retry_for_s: float
) -> None:
    """A wrong request, and a time to come back that lies behind the client's own."""
    active.error = error
    with client(active, retry_for_s=retry_for_s) as to_mesh, pytest.raises(type(error)):
        list(to_mesh.generate(pb.GenerateRequest(text="x")))
    assert 1 == len(active.requests)


@pytest.mark.alone
def test_a_time_limit_counts_all_attempts(standby: FakeGeneration) -> None:
    """A user who waits for a second does not want to wait a second for each attempt."""
    with client(standby, retry_for_s=0.2) as to_mesh, pytest.raises(Standby):
        list(to_mesh.generate(pb.GenerateRequest(text="x"), timeout_s=5.0))
    assert 5 <= len(standby.requests) <= 11


@pytest.mark.parametrize(
    "words", [("generate", "Say hello"), ("bench", "serve", "--num-prompts=4")]
)
def test_commands_take_several_servers(
    standby: FakeGeneration, active: FakeGeneration, words: tuple[str, ...]
) -> None:
    """Whichever of them is active."""
    active.info.num_requests_running = 0
    for server in (standby, active):
        server.model = pb.GetModelInfoResponse(vocab_size=100, context_length=8192)
    result = run_cli(*words, "--server", f"{standby.address},{active.address}", "--json")
    assert 0 == result.exit_code, result.stderr
    told = json.loads(result.stdout)
    if words[0] == "bench":
        assert (4, 0) == (told["runs"][0]["figures"]["completed"], len(standby.requests))


def test_a_server_named_twice_is_refused() -> None:
    """It would be asked twice as often."""
    result = run_cli("generate", "x", "--server", "h:1,h:1")
    assert 2 == result.exit_code
