"""What interceptors take apart to wrap it: the handler of an RPC, unary or streaming."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

# Requests and replies of every RPC pass through here, so their types are not known.
RpcContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Behavior: TypeAlias = Callable[[Any, Any], Any]
RpcHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def parts(handler: RpcHandler) -> tuple[Callable[..., RpcHandler], Behavior]:
    """Return how to make such a handler, and what it does."""
    makes: dict[str, Callable[..., RpcHandler]] = {
        "unary_unary": grpc.unary_unary_rpc_method_handler,
        "unary_stream": grpc.unary_stream_rpc_method_handler,
        "stream_unary": grpc.stream_unary_rpc_method_handler,
        "stream_stream": grpc.stream_stream_rpc_method_handler,
    }
    request = "stream" if handler.request_streaming else "unary"
    response = "stream" if handler.response_streaming else "unary"
    kind = f"{request}_{response}"
    return makes[kind], getattr(handler, kind)
