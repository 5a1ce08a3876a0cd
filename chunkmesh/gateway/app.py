"""The routes of the gateway."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

import prometheus_client
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from chunkmesh.errors import ChunkMeshError
from chunkmesh.gateway.api_error import ApiError, bug, of_mesh_error
from chunkmesh.gateway.exchange import CHAT, COMPLETION, Exchange, Gateway, Kind, bearer
from chunkmesh.gateway.observed import NOTES, REQUEST_ID, Observed
from chunkmesh.gateway.sampling import NAMES
from chunkmesh.gateway.served_model import no_such_model
from chunkmesh.side_door import Readiness
from chunkmesh.trust.guard import KEY_KEY
from chunkmesh.v1 import generation_pb2 as pb

_COMPLETIONS = "/v1/completions"
_CHATS = "/v1/chat/completions"
_MODELS = "/v1/models"
_PROBES = ("/health", "/live", "/ready", "/metrics")
_READY_S = 1.0
"""How long an answer about readiness holds: probes are no load on the scheduler."""


class _Answered(Response):
    """A response that an exchange sends itself."""

    def __init__(self, gateway: Gateway, kind: Kind, request: Request) -> None:
        super().__init__()
        self._exchange = Exchange(
            gateway=gateway,
            kind=kind,
            request_id=request.scope[REQUEST_ID],
            notes=request.scope[NOTES],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._exchange(scope, receive, send)


def app(gateway: Gateway) -> ASGIApp:
    """Return the application."""
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    api.exception_handler(ApiError)(_on_api_error)
    api.exception_handler(ChunkMeshError)(_on_mesh_error)
    api.exception_handler(HTTPException)(_on_http_error)
    api.exception_handler(Exception)(_on_bug)
    _add_generation(api, gateway)
    _add_models(api, gateway)
    _add_probes(api, gateway)
    return Observed(api, frozenset({_COMPLETIONS, _CHATS, _MODELS, *_PROBES}))


def _add_generation(api: FastAPI, gateway: Gateway) -> None:
    async def completions(request: Request) -> Response:
        return _Answered(gateway, COMPLETION, request)

    async def chat_completions(request: Request) -> Response:
        return _Answered(gateway, CHAT, request)

    api.add_api_route(_COMPLETIONS, completions, methods=["POST"])
    api.add_api_route(_CHATS, chat_completions, methods=["POST"])


def _add_models(api: FastAPI, gateway: Gateway) -> None:
    created_s = int(time.time())

    async def models(request: Request) -> Response:
        info = await gateway.model.ask(bearer(request.headers.get(KEY_KEY)))
        return JSONResponse({"object": "list", "data": [_model(info, created_s)]})

    async def model(request: Request, name: str) -> Response:
        info = await gateway.model.ask(bearer(request.headers.get(KEY_KEY)))
        if name != info.served_model_name:
            raise no_such_model()
        return JSONResponse(_model(info, created_s))

    api.add_api_route(_MODELS, models)
    api.add_api_route(f"{_MODELS}/{{name:path}}", model)


def _add_probes(api: FastAPI, gateway: Gateway) -> None:
    probe = _Probe(gateway)

    async def live() -> Response:
        return JSONResponse({"live": True})

    async def ready() -> Response:
        now = await probe.readiness()
        content = {"ready": now.ready, "state": now.state, "reason": now.reason}
        return JSONResponse(content, status_code=200 if now.ready else 503)

    async def metrics() -> Response:
        content = prometheus_client.generate_latest()
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    api.add_api_route("/health", live)
    api.add_api_route("/live", live)
    api.add_api_route("/ready", ready)
    api.add_api_route("/metrics", metrics)


class _Probe:
    """Asks the schedulers whether they serve, once for all who ask at a time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._reason = ""
        self._until_s = 0.0
        self._turn = asyncio.Lock()

    async def readiness(self) -> Readiness:
        """Answer /ready."""
        if self._gateway.open_requests.draining:
            return Readiness(ready=False, state="draining", reason="the gateway is shutting down")
        async with self._turn:
            if time.monotonic() >= self._until_s:
                self._reason = await self._gateway.client.unready_reason()
                self._until_s = time.monotonic() + _READY_S
        state = "waiting" if self._reason else "serving"
        return Readiness(ready=not self._reason, state=state, reason=self._reason)


def _model(info: pb.GetModelInfoResponse, created_s: int) -> dict[str, JsonValue]:
    return {
        "id": info.served_model_name,
        "object": "model",
        "created": created_s,
        "owned_by": "chunkmesh",
        "max_model_len": info.context_length,
    }


async def _on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _response(error)


async def _on_mesh_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ChunkMeshError)
    return _response(of_mesh_error(error, NAMES))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Tell of a route or method that there is not."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        told = ApiError(404, "there is no such route", code="unknown_url")
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        told = ApiError(405, f"this route takes no {request.method}", code="method_not_allowed")
    else:
        told = ApiError(error.status_code, str(error.detail))
    return _response(told, error.headers)


async def _on_bug(_request: Request, _error: Exception) -> Response:
    """Tell of a bug, which is raised again behind this and logged."""
    return _response(bug())


def _response(error: ApiError, headers: object = None) -> Response:
    more = dict(headers) if isinstance(headers, dict) else {}
    return JSONResponse(error.body(), status_code=error.status, headers={**error.headers(), **more})
