"""What a caller without an event loop sends with every call: a bearer key, a tenant's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from chunkmesh.trust.guard import KEY_KEY, SCHEME, TENANT_KEY


def caller_metadata(*, api_key: str, tenant: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a key and a tenant; of neither where it is empty."""
    key = ((KEY_KEY, f"{SCHEME} {api_key}"),) if api_key else ()
    return (*key, (TENANT_KEY, tenant)) if tenant else key


def bearing(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]) -> grpc.Channel:
    """Return a channel whose calls bear metadata; closing it closes the one below."""
    return grpc.intercept_channel(channel, _Bearer(metadata)) if metadata else channel


class _Details(grpc.ClientCallDetails):
    """Those of a call, with more metadata."""

    def __init__(self, of: grpc.ClientCallDetails, metadata: tuple[tuple[str, str], ...]) -> None:
        self.method = of.method
        self.timeout = of.timeout
        self.metadata = (*(of.metadata or ()), *metadata)
        self.credentials = of.credentials
        self.wait_for_ready = of.wait_for_ready
        self.compression = of.compression


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds metadata to calls of any kind."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def _send(
        self,
        continuation: Callable[..., Any],
        details: grpc.ClientCallDetails,
        request: Any,  # noqa: ANN401 - calls of any kind
    ) -> Any:  # noqa: ANN401
        return continuation(_Details(details, self._metadata), request)

    intercept_unary_unary = _send  # type: ignore[assignment]
    intercept_unary_stream = _send  # type: ignore[assignment]
    intercept_stream_unary = _send  # type: ignore[assignment]
    intercept_stream_stream = _send  # type: ignore[assignment]
