"""Clients of all manners: patient ones, and those that cancel, vanish, hurry or do not read.

Each plays one request and adds to the tally. Only patient ones must be answered; the others must
see an end that their manner allows. All try again as docs/reliability.md says. Whatever tokens
arrive are held against the reference.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc

from chunkmesh.address import HostPort
from chunkmesh.grpc_options import CLIENT_OPTIONS
from chunkmesh.retrying import Attempts, Servers
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.soak.answers import NEW_TOKENS, Known
from tests.soak.tally import Tally

Call: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"
Stub: TypeAlias = "generation_pb2_grpc.GenerationAsyncStub"

BUSY = frozenset({"RESOURCE_EXHAUSTED"})
"""Allowed for everybody: the door may be full."""
GONE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
GONE_NAMES = frozenset(each.name for each in GONE)
SLOW_TOKENS = 1200
PATIENCE_S = 120.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One request to play."""

    address: str
    stub: Stub
    """Over a connection that many share."""
    known: Known
    chance: random.Random
    tally: Tally
    name: str
    """request_id, used once."""
    num_streamed: dict[int, int] = dataclasses.field(default_factory=dict)
    """Tokens that were streamed, by output."""
    errors: list[grpc.aio.AioRpcError] = dataclasses.field(default_factory=list)
    """How calls failed."""
    attempts: Attempts
    """Of this request, this one included."""

    def request(self, *, stream: bool = True, **params: Any) -> pb.GenerateRequest:
        """Ask greedily for the known answer, at some priority."""
        sampling = {"temperature": 0.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True} | params
        return pb.GenerateRequest(
            request_id=self.name,
            input_ids=pb.TokenIds(ids=self.known.prompt),
            sampling_params=pb.SamplingParams(**sampling),
            stream=stream,
            return_progress=self.chance.random() < 0.5,
            priority=self.chance.randrange(-1, 2),
        )

    async def read(self, call: Call, *, num_messages: int | None = None) -> str:
        """Read so many messages, or to the end, comparing what comes; return the status' name.

        "" says that the call goes on.
        """
        try:
            while num_messages is None or num_messages > 0:
                message = await call.read()
                if not isinstance(message, pb.GenerateResponse):
                    break
                self.hear(message)
                num_messages = None if num_messages is None else num_messages - 1
            else:
                return ""
        except grpc.aio.AioRpcError as error:
            self.errors.append(error)
            return error.code().name
        return (await call.code()).name

    def hear(self, message: pb.GenerateResponse) -> None:
        """Hold what a message tells of an answer against the reference, as far as that goes."""
        self.attempts.heard(message)
        if message.HasField("chunk"):
            index, ids = message.chunk.index, list(message.chunk.token_ids)
            start = self.num_streamed.get(index, 0)
            self.num_streamed[index] = start + len(ids)
        else:
            start, ids = 0, list(message.complete.output_ids)
        expected = self.known.answer[start:]
        self.tally.compare(expected, ids[: len(expected)])


async def whole(client: Client) -> str:
    """Wait for the complete message."""
    return await client.read(client.stub.Generate(client.request(stream=False), timeout=PATIENCE_S))


async def stream(client: Client) -> str:
    """Read token by token."""
    return await client.read(client.stub.Generate(client.request(), timeout=PATIENCE_S))


async def outputs(client: Client) -> str:
    """Ask for several outputs, which are the same."""
    request = client.request(n=client.chance.randrange(2, 5))
    return await client.read(client.stub.Generate(request, timeout=PATIENCE_S))


async def late(client: Client) -> str:
    """Read with pauses, but read."""
    call = client.stub.Generate(client.request(), timeout=PATIENCE_S)
    while not (status := await client.read(call, num_messages=4)):
        await asyncio.sleep(0.05)
    return status


async def cancel(client: Client) -> str:
    """Cancel before, in the midst of, or after what comes."""
    call = client.stub.Generate(client.request(), timeout=PATIENCE_S)
    if client.chance.random() < 0.5:
        await asyncio.sleep(client.chance.random() * 0.3)
    elif status := await client.read(call, num_messages=client.chance.randrange(1, 12)):
        return status
    call.cancel()
    code = await call.code()
    if code is grpc.StatusCode.UNAVAILABLE:  # before it was cancelled
        details = await call.details()
        client.errors.append(
            grpc.aio.AioRpcError(code, grpc.aio.Metadata(), await call.trailing_metadata(), details)
        )
    return code.name


async def abort(client: Client) -> str:
    """Let somebody else abort it; the end is told in the stream."""
    call = client.stub.Generate(client.request(), timeout=PATIENCE_S)
    reading = asyncio.create_task(client.read(call))
    await asyncio.sleep(client.chance.random() * 0.3)
    try:
        await client.stub.Abort(pb.AbortRequest(request_id=client.name), timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        if error.code() not in GONE:
            raise
    return await reading


async def vanish(client: Client) -> str:
    """Close the connection under a call."""
    link = grpc.aio.insecure_channel(client.address, options=CLIENT_OPTIONS)
    call = generation_pb2_grpc.GenerationStub(link).Generate(
        client.request(), timeout=PATIENCE_S, wait_for_ready=True
    )
    status = await client.read(call, num_messages=client.chance.randrange(1, 6))
    await asyncio.sleep(client.chance.random() * 0.1)
    await link.close()
    return status or "gone"


async def hurry(client: Client) -> str:
    """Give it a deadline that it may not meet."""
    timeout_s = 0.005 * 2 ** client.chance.randrange(8)
    return await client.read(client.stub.Generate(client.request(), timeout=timeout_s))


async def stop_reading(client: Client) -> str:
    """Ask for much, read a little, and read on only when the server has had enough."""
    options = [*CLIENT_OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    request = client.request(max_new_tokens=SLOW_TOKENS, logprobs=True, top_logprobs=20)
    async with grpc.aio.insecure_channel(client.address, options=options) as link:
        call = generation_pb2_grpc.GenerationStub(link).Generate(
            request, timeout=PATIENCE_S, wait_for_ready=True
        )
        if status := await client.read(call, num_messages=3):
            return status
        await asyncio.sleep(12 + 6 * client.chance.random())
        return await client.read(call)


async def nonsense(client: Client) -> str:
    """Ask for what cannot be."""
    params = {"temperature": -1.0} if client.chance.random() < 0.5 else {"stop_token_ids": [10**6]}
    return await client.read(client.stub.Generate(client.request(**params), timeout=PATIENCE_S))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a client behaves, how often, and which ends it may see."""

    play: Callable[[Client], Awaitable[str]]
    weight: int
    allowed: frozenset[str]


MANNERS: Mapping[str, Manner] = {
    play.__name__: Manner(play=play, weight=weight, allowed=BUSY | set(ends))
    for play, weight, ends in (
        (whole, 20, {"OK"}),
        (stream, 20, {"OK"}),
        (outputs, 8, {"OK"}),
        (late, 5, {"OK"}),
        (cancel, 15, {"OK", "CANCELLED"}),
        (abort, 5, {"OK"}),
        (vanish, 10, {"OK", "gone"}),
        (hurry, 12, {"OK", "DEADLINE_EXCEEDED"}),
        (stop_reading, 2, {"OK"}),
        (nonsense, 3, {"INVALID_ARGUMENT"}),
    )
}


async def play_on(
    servers: Servers, known: Sequence[Known], seed: int, tally: Tally, stop: asyncio.Event
) -> None:
    """Play one request after the other until told to stop."""
    chance = random.Random(seed)  # noqa: S311 -- a seeded test
    names, weights = list(MANNERS), [manner.weight for manner in MANNERS.values()]
    async with contextlib.AsyncExitStack() as stack:
        stubs: dict[HostPort, Stub] = {}
        for address in servers.addresses:
            link = grpc.aio.insecure_channel(str(address), options=CLIENT_OPTIONS)
            stubs[address] = generation_pb2_grpc.GenerationStub(
                await stack.enter_async_context(link)
            )
        player = _Player(servers=servers, stubs=stubs, chance=chance, tally=tally)
        for index in range(1 << 30):
            if stop.is_set():
                return
            manner = chance.choices(names, weights)[0]
            await player.play(manner, chance.choice(known), f"{seed}-{index}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """Who plays requests one after the other."""

    servers: Servers
    stubs: Mapping[HostPort, Stub]
    chance: random.Random
    tally: Tally

    async def play(self, manner: str, known: Known, name: str) -> None:
        """Play one request, again and again while that may help; note its end."""
        attempts, begin_s = self.servers.begin(1), time.monotonic()
        while True:
            client = Client(
                address=str(attempts.server),
                stub=self.stubs[attempts.server],
                known=known,
                chance=self.chance,
                tally=self.tally,
                name=f"{name}-{attempts.num_failed}",
                attempts=attempts,
            )
            outcome = await MANNERS[manner].play(client)
            if outcome in MANNERS[manner].allowed or not client.errors:
                break
            pause_s = attempts.pause_s(client.errors[-1])
            if pause_s is None:
                break
            self.tally.num_retried += 1
            await asyncio.sleep(pause_s)
        if outcome == "OK":
            attempts.answered()
        self._note(manner, outcome, client, begin_s)

    def _note(self, manner: str, outcome: str, client: Client, begin_s: float) -> None:
        self.tally.outcomes[manner, outcome] += 1
        if outcome in MANNERS[manner].allowed:
            return
        is_cut = any(begin_s <= cut_s for cut_s in self.tally.cuts_s)
        if outcome in GONE_NAMES and client.num_streamed and is_cut:
            self.tally.num_cut += 1
        else:
            said = [error.details() for error in client.errors]
            self.tally.unexpected.append(f"{manner}: {outcome} {said}")
