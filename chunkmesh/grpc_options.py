"""Channel options that clients and servers share: sizes, numbers, times and keep-alive.

A long prefill sends nothing for minutes, so idle streams are pinged and servers allow it.
gRPC ignores an option whose name it does not know; tests hold the names to their effect.
Source: https://grpc.io/docs/guides/keepalive/
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 * 2**20
"""Most bytes of one message, both ways, on both ends: over ten million token ids."""
MAX_PENDING_CALLS = 1 << 15
MAX_METADATA_BYTES = 16 * 2**10
"""Most bytes of the headers or of the trailers of a call, keys and names of methods included."""
MAX_STREAMS = 2048
"""Most calls at a time on one connection; the client's gRPC makes more of them wait."""
MAX_CALLS = 8192
"""Most calls at a time on one server; more are RESOURCE_EXHAUSTED."""
HANDSHAKE_S = 10
"""Time for a new connection to get through TLS and HTTP/2."""
PING_INTERVAL_S = 20
PING_TIMEOUT_S = 10
CONNECT_TIMEOUT_S = 5

_SHARED = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The soft limit begins to refuse some of what is longer, so both are the same.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", PING_INTERVAL_S * 1000),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CLIENT_OPTIONS = (
    *_SHARED,
    # Several servers on loopback must not share one connection by mistake of the port.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # How long one attempt may take; a server that is busy or far is slow to greet.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_S * 1000),
)
SERVER_OPTIONS = (
    *_SHARED,
    ("grpc.so_reuseport", 0),
    # Calls that Python has not picked up yet. By default gRPC drops some of more than 1000 of them,
    # with CANCELLED: a burst is to be refused by us, in words.
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_S * 500),
    ("grpc.http2.max_ping_strikes", 0),
)
