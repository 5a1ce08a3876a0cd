"""The internal port: one Attach stream a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import structlog

from chunkmesh.errors import InvalidRequest, InvariantViolated, StageUnavailable, Unavailable
from chunkmesh.v1 import stage_pb2 as pb
from chunkmesh.v1 import stage_pb2_grpc
from scheduler import route_codec
from scheduler.candidate import Candidate
from scheduler.control_loop import ControlLoop
from scheduler.latency_file import LatencyFile
from scheduler.stage_fit import StageFit, file_fit, profile_fit
from scheduler.standby import check_follows
from scheduler.worker_check import Refused
from scheduler.worker_hello import WorkerHello
from scheduler.worker_stream import WorkerStream

_log = structlog.get_logger(__name__)
_HELLO_S = 10.0
_BEAT_S = 0.5
_BEAT = pb.AttachResponse(beat=pb.Beat())
_Context = grpc.aio.ServicerContext[pb.AttachRequest, pb.AttachResponse]


class AttachService(stage_pb2_grpc.StageControlServicer):
    """Carries messages between workers and the control loop."""

    def __init__(
        self, control_loop: ControlLoop, latency_file: LatencyFile | None, candidate: Candidate
    ) -> None:
        """Serve one control loop; what a file says of latencies goes before what workers measure.

        The file covers the model's layers.
        """
        self._loop = control_loop
        self._latency_file = latency_file
        self._candidate = candidate

    async def Attach(
        self, request_iterator: AsyncIterator[pb.AttachRequest], _context: _Context
    ) -> AsyncIterator[pb.AttachResponse]:
        """Take a worker in, then write its orders until either side ends."""
        messages = aiter(request_iterator)
        first = await _first(messages)
        hello = route_codec.hello_from(first)
        workers = self._loop.workers
        check_follows(self._candidate, workers.registry.epoch, first.seen_epoch)
        yield _BEAT
        try:
            workers.registry.check(hello)
            fit = await asyncio.to_thread(_fit, hello, self._latency_file)
            check_follows(self._candidate, workers.registry.epoch, first.seen_epoch)
            stream = workers.attach(hello, fit)
        except Refused as refused:
            raise InvalidRequest(f"this worker is refused: {refused}") from refused
        reader = asyncio.create_task(self._read(stream, messages))
        try:
            async for order in _orders(stream):
                yield order
            raise StageUnavailable(f"this worker was given up: {stream.lost_reason}")
        finally:
            self._loop.workers.lose_stream(stream, "its stream ended")
            reader.cancel()
            await _raise_bug(reader)

    async def _read(self, stream: WorkerStream, messages: AsyncIterator[pb.AttachRequest]) -> None:
        """Hear a worker until its stream ends."""
        reason = "its stream ended"
        try:
            async for message in messages:
                self._loop.hear(stream, message)
        except InvariantViolated as error:
            reason = f"it broke the protocol: {error}"
            _log.error("worker broke the protocol", worker=stream.worker_id, error=str(error))
        finally:
            self._loop.workers.lose_stream(stream, reason)


async def _orders(stream: WorkerStream) -> AsyncIterator[pb.AttachResponse]:
    """Yield orders until the worker is given up, and a sign of life where there is none."""
    while True:
        try:
            async with asyncio.timeout(_BEAT_S):
                order = await stream.next_order()
        except TimeoutError:
            order = _BEAT
        if order is None:
            return
        yield order


def _fit(hello: WorkerHello, file: LatencyFile | None) -> StageFit:
    """Find out what microbatches take on a worker; on a thread, for up to a second."""
    if file is None:
        return profile_fit(hello.layers, hello.profile)
    if file.device != hello.device:
        _log.warning("latency model is of another device", model=file.device, worker=hello.device)
    return file_fit(file, hello.layers, hello.profile)


async def _raise_bug(reader: asyncio.Task[None]) -> None:
    """Wait for a cancelled reader; the chassis logs what ended it, unless that is the stream's."""
    (error,) = await asyncio.gather(reader, return_exceptions=True)
    if isinstance(error, Exception) and not isinstance(error, grpc.aio.BaseError):
        raise error


async def _first(messages: AsyncIterator[pb.AttachRequest]) -> pb.Hello:
    """Return the hello that must come first.

    Raises:
        InvalidRequest: something else came.
        Unavailable: nothing came in time; either side may have been stopped for a while.
    """
    try:
        async with asyncio.timeout(_HELLO_S):
            first = await anext(messages, None)
    except TimeoutError as error:
        raise Unavailable(f"no hello within {_HELLO_S:.0f} s") from error
    if first is None or first.WhichOneof("event") != "hello":
        raise InvalidRequest("the first message must be hello")
    return first.hello
