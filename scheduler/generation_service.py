"""The users' port: checks requests at the door, hands them to the control loop, streams what comes."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator

import grpc
import numpy as np
import structlog

from chunkmesh import __version__
from chunkmesh.errors import InvalidRequest, Unavailable
from chunkmesh.pages import TokenIds, extend_chain
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from scheduler import replies
from scheduler.control_loop import ControlLoop
from scheduler.door import Door
from scheduler.hicache_client import HiCacheClient
from scheduler.model_info import ModelInfo
from scheduler.request_stream import RequestStream

_log = structlog.get_logger(__name__)


class GenerationService(generation_pb2_grpc.GenerationServicer):
    """Serves users of one mesh."""

    def __init__(
        self, *, control_loop: ControlLoop, door: Door, hicache: HiCacheClient | None
    ) -> None:
        """Serve one control loop; door turns protos into requests."""
        self.draining = False
        """Whether new requests are refused because the scheduler shuts down."""
        self._loop = control_loop
        self._door = door
        self._hicache = hicache

    async def Generate(  # noqa: N802 - named by the proto
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Run one request; the call's end, however it comes, is the request's end."""
        arrived_s = time.monotonic()
        self._check_open()
        request_id = request.request_id or secrets.token_hex(8)
        if self._loop.is_running(request_id):
            raise InvalidRequest(f"request_id {request_id!r} is running", field="request_id")
        spec = await self._door.admit(request, request_id, self._loop.namespace(request.cache_salt))
        stream = RequestStream(prompt_tokens=len(spec.prompt_ids), arrived_s=arrived_s)
        self._loop.submit(spec, stream)
        try:
            async for response in replies.responses(request, request_id, stream):
                yield response
        finally:
            self._loop.forget(request_id)
