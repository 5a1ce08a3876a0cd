"""The errors of the HTTP API, in OpenAI's form, and the one table from the mesh's errors. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from pydantic import JsonValue

from chunkmesh.errors import (
    ChunkMeshError,
    ConfigError,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NotFound,
    Overloaded,
    SlowReader,
    StaleEpoch,
    Unauthenticated,
    Unavailable,
)

CLIENT_GONE = 499
"""Status of a request whose client left before its end: only for logs and metrics."""
_RETRY_S = 1.0
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
"""Status -> type; of all others server_error."""


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Keep all that the answer says; param is the field at fault, as the client named it."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, JsonValue]:
        """Return the JSON of the answer."""
        error: dict[str, JsonValue] = {
            "message": str(self),
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Return the headers that say when to try again, and how to say who asks."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """Return the error of a request that cannot be served as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str) -> ApiError:
    """Return the error of a time in which nobody serves."""
    return ApiError(503, message, code="unavailable", retry_after_s=_RETRY_S)


def bug() -> ApiError:
    """Return the error of a bug of ours."""
    return ApiError(500, "internal error; the gateway's log has its place", code="server_error")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    status: int
    code: str
    message: str | None = None
    """None tells the error's own."""


_TABLE: Mapping[type[ChunkMeshError], _Told] = {
    NotFound: _Told(status=404, code="not_found"),
    InvalidRequest: _Told(status=400, code="invalid_value"),
    Unauthenticated: _Told(status=401, code="invalid_api_key"),
    Forbidden: _Told(status=403, code="forbidden"),
    Overloaded: _Told(status=429, code="rate_limit_exceeded"),
    SlowReader: _Told(status=429, code="slow_reader"),
    DeadlineExceeded: _Told(status=504, code="deadline_exceeded"),
    Unavailable: _Told(status=503, code="unavailable"),
    StaleEpoch: _Told(status=503, code="unavailable"),
    ConfigError: _Told(status=500, code="server_error", message="the mesh is not set up for this"),
}
_OTHER = _Told(status=500, code="server_error")


def of_mesh_error(error: ChunkMeshError, names: Mapping[str, str]) -> ApiError:
    """Return what a client is told; names are the mesh's fields as this client knows them."""
    told = next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), _OTHER)
    param = None
    message = told.message or str(error)
    if isinstance(error, InvalidRequest):
        field = error.field.rpartition(".")[2]
        param = names.get(field, field) or None
        message = _renamed(message, names)
    retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else None
    if retry_after_s is None and told.status in {429, 503}:
        retry_after_s = _RETRY_S
    return ApiError(told.status, message, param=param, code=told.code, retry_after_s=retry_after_s)


def _renamed(message: str, names: Mapping[str, str]) -> str:
    """Return a text with the client's names; those that are words of English are left alone."""
    pattern = "|".join(sorted((name for name in names if "_" in name), key=len, reverse=True))
    if not pattern:
        return message
    return re.sub(rf"(?<![\w-])(?:{pattern})(?!\w)", lambda found: names[found[0]], message)
