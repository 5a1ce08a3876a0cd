"""One POST to the mesh: reads the body, runs its prompts, and answers whole or in pieces."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from chunkmesh.errors import ChunkMeshError, Unauthenticated
from chunkmesh.gateway.answer import Answer, AnswerHead, ChoiceForm
from chunkmesh.gateway.api_error import ApiError, of_mesh_error, unavailable
from chunkmesh.gateway.asked import Asked
from chunkmesh.gateway.bodies import ClientGone, declared_bytes, parsed, read_body
from chunkmesh.gateway.chat_request import read_chat
from chunkmesh.gateway.choice_forms import ChatChoices, CompletionChoices
from chunkmesh.gateway.completion_request import read_completion
from chunkmesh.gateway.mesh_client import MeshClient, Metadata
from chunkmesh.gateway.open_requests import OpenRequests
from chunkmesh.gateway.sampling import NAMES
from chunkmesh.gateway.served_model import ServedModel
from chunkmesh.gateway.several import numbered
from chunkmesh.gateway.token_names import TokenNames
from chunkmesh.gateway.wire import ABORT, DONE, Wire, as_bytes, as_event
from chunkmesh.trust.guard import KEY_KEY, SCHEME
from chunkmesh.trust.key_file import MAX_KEY_CHARACTERS
from chunkmesh.v1 import generation_pb2 as pb

_IDS_AT_ONCE = 1 << 16
"""Most ids of one question for their bytes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What completions and chats differ in."""

    read: Callable[[object], Asked]
    form: Callable[[TokenNames, frozenset[int]], ChoiceForm]
    id_prefix: str


COMPLETION = Kind(read=read_completion, form=CompletionChoices, id_prefix="cmpl-")
CHAT = Kind(read=read_chat, form=ChatChoices, id_prefix="chatcmpl-")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one exchange may take."""

    request_timeout_s: float | None
    """From the request's begin to its end; None means no limit."""
    unread_timeout_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """What all exchanges share."""

    client: MeshClient
    model: ServedModel
    open_requests: OpenRequests
    limits: Limits


@dataclasses.dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and its answer; an ASGI application for that one."""

    gateway: Gateway
    kind: Kind
    request_id: str
    """For an answer whose client has chosen no id."""
    notes: dict[str, Any]
    """What the request's log line tells; no text."""
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: NAMES)
    """The mesh's fields as the client knows them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; errors are answers, too."""
        wire = Wire(
            receive,
            send,
            unread_timeout_s=self.gateway.limits.unread_timeout_s,
            abort=scope.get("state", {}).get(ABORT, lambda: None),
        )
        try:
            error = await self._error(Request(scope, receive), wire)
            if error is not None:
                self.notes.update(error=error.code, error_status=error.status)
                await wire.error(error)
        except ClientGone:
            self.notes["gone"] = True

    async def _error(self, request: Request, wire: Wire) -> ApiError | None:
        """Answer, and return what the client is still to be told."""
        try:
            with self.gateway.open_requests.one():
                await self._answer(request, wire)
        except ApiError as error:
            return error
        except ChunkMeshError as error:
            return of_mesh_error(error, self.names)
        except asyncio.CancelledError:
            if not self.gateway.open_requests.is_over:
                raise
            _take_back_cancellation()
            return unavailable("the gateway has shut down")
        return None

    async def _answer(self, request: Request, wire: Wire) -> None:
        begin_s = time.monotonic()
        open_requests = self.gateway.open_requests
        most = open_requests.max_body_bytes
        metadata = bearer(request.headers.get(KEY_KEY))
        with open_requests.holding(declared_bytes(request, most=most)):
            body = await read_body(request, most=most)
        with open_requests.holding(len(body)):
            asked = await parsed(body, self.kind.read)
            del body  # what was made of it is as long
            self.names = asked.names
            with open_requests.prompts(len(asked.requests) - 1):
                await wire.watch(self._run(asked, metadata, wire, begin_s))

    async def _run(self, asked: Asked, metadata: Metadata, wire: Wire, begin_s: float) -> None:
        """Ask the mesh, and send what it says."""
        info = await self.gateway.model.named(asked.model, metadata)
        names = self.gateway.model.names
        answer_id = asked.request_id or self.kind.id_prefix + self.request_id
        head = AnswerHead(
            id=answer_id,
            created_s=int(time.time()),
            model=info.served_model_name,
            fingerprint=info.fingerprint.hex(),
        )
        stop_ids = frozenset(asked.requests[0].sampling_params.stop_token_ids)
        answer = Answer(asked, head, self.kind.form(names, stop_ids))
        self._set_ids(asked, answer_id)
        replies = self._replies(asked, metadata, names, begin_s)
        try:
            if asked.stream is not None:
                await wire.stream(_events(answer, replies))
            else:
                async with contextlib.aclosing(replies):
                    async for prompt, reply in replies:
                        answer.take(prompt, reply)
                await wire.whole(200, as_bytes(answer.whole()), {})
        finally:
            self._note(asked, answer, answer_id)

    async def _replies(
        self, asked: Asked, metadata: Metadata, names: TokenNames, begin_s: float
    ) -> AsyncGenerator[tuple[int, pb.GenerateResponse], None]:
        """Yield replies with the prompt that they are about; names know all of their tokens."""
        limit_s = self.gateway.limits.request_timeout_s
        left_s = None if limit_s is None else max(0.0, begin_s + limit_s - time.monotonic())
        sources = [
            self.gateway.client.generate(request, metadata, timeout_s=left_s)
            for request in asked.requests
        ]
        async with contextlib.aclosing(numbered(sources)) as replies:
            async for prompt, reply in replies:
                unknown = names.unknown(reply)
                for first in range(0, len(unknown), _IDS_AT_ONCE):
                    ids = unknown[first : first + _IDS_AT_ONCE]
                    names.learn(ids, await self.gateway.client.token_bytes(ids, metadata))
                yield prompt, reply

    def _set_ids(self, asked: Asked, answer_id: str) -> None:
        """Name the mesh's requests as the answer, so that its timelines are found by that."""
        for index, request in enumerate(asked.requests):
            request.request_id = answer_id if len(asked.requests) == 1 else f"{answer_id}-{index}"

    def _note(self, asked: Asked, answer: Answer, answer_id: str) -> None:
        self.notes.update(
            id=answer_id,
            stream=asked.stream is not None,
            num_prompts=len(asked.requests),
            prompt_tokens=answer.usage.prompt_tokens,
            hit_tokens=answer.usage.cached_tokens,
            output_tokens=answer.usage.output_tokens,
            finish_reason=",".join(sorted(answer.finish_reasons)),
        )


async def _events(
    answer: Answer, replies: AsyncGenerator[tuple[int, pb.GenerateResponse], None]
) -> AsyncGenerator[bytes, None]:
    """Yield an answer as events: one piece of bytes a reply, if it tells anything."""
    async with contextlib.aclosing(replies):
        async for prompt, reply in replies:
            if event := b"".join(map(as_event, answer.pieces(prompt, reply))):
                yield event
    yield b"".join(map(as_event, answer.last_pieces())) + DONE


def bearer(header: str | None) -> Metadata:
    """Return the metadata that hands a client's key on; none where there is no bearer key.

    Raises:
        Unauthenticated: no key can look like this.
    """
    scheme, _, key = (header or "").partition(" ")
    key = key.strip()
    if scheme.lower() != SCHEME.lower() or not key:
        return ()
    if len(key) > MAX_KEY_CHARACTERS or not (key.isascii() and key.isprintable()):
        raise Unauthenticated("the bearer key is not known here")
    return ((KEY_KEY, f"{SCHEME} {key}"),)


def _take_back_cancellation() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
