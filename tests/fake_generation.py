"""A Generation server without a model: plays scripted replies and records what it was asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from chunkmesh.errors import ChunkMeshError
from chunkmesh.grpc_options import SERVER_OPTIONS
from chunkmesh.status import to_status
from chunkmesh.v1 import common_pb2, generation_pb2_grpc
from chunkmesh.v1 import generation_pb2 as pb

_Context = grpc.aio.ServicerContext[Any, Any]


def script(text: str = "Hello world", cached: int = 0) -> list[pb.GenerateResponse]:
    """Return the replies of a request of 100 tokens in two chunks; text comes in two pieces."""
    half = len(text) // 2
    progress = pb.PromptProgress(
        total=100, cached=cached, processed=64, chunk_index=1, chunks_planned=2, eta_ms=1500
    )
    pieces = [pb.GenerateStreamChunk(text=text[:half]), pb.GenerateStreamChunk(text=text[half:])]
    complete = pb.GenerateComplete(
        text=text,
        output_ids=[5, 6, 7],
        finish_reason=pb.FINISH_REASON_LENGTH,
        prompt_tokens=100,
        completion_tokens=3,
        cached_tokens=cached,
        chunk_tokens=[64, 36 - cached] if cached < 36 else [100 - cached],
        ttft_ms=12.5,
        e2e_ms=20.0,
    )
    return [
        pb.GenerateResponse(progress=progress),
        *(pb.GenerateResponse(chunk=piece) for piece in pieces),
        pb.GenerateResponse(complete=complete),
    ]


class FakeGeneration(generation_pb2_grpc.GenerationServicer):
    """Runs in a thread of its own, so that a command line may block this one."""

    def __init__(self) -> None:
        """Start serving on a free port."""
        self.address = ""
        self.requests: list[pb.GenerateRequest] = []
        self.replies: list[pb.GenerateResponse] = script()
        self.timelines: list[pb.GetTimelinesResponse] = []
        self.timeline_requests: list[pb.GetTimelinesRequest] = []
        self.info = server_info()
        self.model = pb.GetModelInfoResponse(served_model_name="fake", context_length=8192)
        self.error: ChunkMeshError | None = None
        self.hang = False
        """Sends everything but the last reply, then waits."""
        self.cancelled = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self._started.wait(10)

    def close(self) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        generation_pb2_grpc.add_GenerationServicer_to_server(self, server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self._started.set()
        await self._stop.wait()
        await server.stop(grace=None)

    async def Generate(
        self, request: pb.GenerateRequest, context: _Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Play the script."""
        self.requests.append(request)
        await self._fail_if_told(context)
        try:
            for reply in self.replies[:-1] if self.hang else self.replies:
                yield reply
            if self.hang:
                await asyncio.sleep(60)
        except (asyncio.CancelledError, GeneratorExit):  # the latter while a reply is on its way
            self.cancelled.set()
            raise

    async def GetTimelines(
        self, request: pb.GetTimelinesRequest, context: _Context
    ) -> AsyncIterator[pb.GetTimelinesResponse]:
        """Tell the timelines that were set, whatever is asked for."""
        self.timeline_requests.append(request)
        await self._fail_if_told(context)
        for timeline in self.timelines:
            yield timeline

    async def _fail_if_told(self, context: _Context) -> None:
        """End the call with the error that was set."""
        if self.error is not None:
            status = to_status(self.error)
            await context.abort(status.code, status.message, status.trailing_metadata)

    async def Abort(self, _request: pb.AbortRequest, _context: _Context) -> pb.AbortResponse:
        """Find nothing."""
        return pb.AbortResponse(found=False)

    async def FlushCache(
        self, _request: pb.FlushCacheRequest, _context: _Context
    ) -> pb.FlushCacheResponse:
        """Drop nothing."""
        return pb.FlushCacheResponse(num_pages=0)

    async def GetModelInfo(
        self, _request: pb.GetModelInfoRequest, _context: _Context
    ) -> pb.GetModelInfoResponse:
        """Describe the model that was set, without a vocabulary if none was."""
        return self.model

    async def Tokenize(
        self, request: pb.TokenizeRequest, _context: _Context
    ) -> pb.TokenizeResponse:
        """Make a token of every word of a text or a chat."""
        said = [message.content for message in request.chat.messages]
        words = " ".join([request.text, *said]).split()
        return pb.TokenizeResponse(input_ids=range(len(words)))

    async def Detokenize(
        self, request: pb.DetokenizeRequest, _context: _Context
    ) -> pb.DetokenizeResponse:
        """Make a letter of each id."""
        return pb.DetokenizeResponse(tokens=[bytes([97 + id_ % 26]) for id_ in request.ids])

    async def GetServerInfo(
        self, _request: pb.GetServerInfoRequest, _context: _Context
    ) -> pb.GetServerInfoResponse:
        """Describe the mesh that was set, of two stages if none was."""
        return self.info


def server_info() -> pb.GetServerInfoResponse:
    """Return a mesh of two stages that is ready."""
    worker: Callable[..., pb.WorkerInfo] = pb.WorkerInfo
    layers = common_pb2.LayerRange
    return pb.GetServerInfoResponse(
        ready=True,
        workers=[
            worker(
                worker_id="w0",
                layers=layers(first=0, last=15),
                stage_index=0,
                data_address="127.0.0.1:5000",
                kv_capacity_tokens=65536,
                outbound=pb.LinkInfo(transport="tcp", rtt_us=250),
                device="cpu",
            ),
            worker(worker_id="w1", layers=layers(first=15, last=30), stage_index=1, device="cpu"),
        ],
        epoch=3,
        page_tokens=64,
        num_pages=1000,
        free_pages=990,
        num_requests_running=1,
        chunk_strategy="fixed",
        chunked_prefill_tokens=256,
        version="0.1.0",
    )
