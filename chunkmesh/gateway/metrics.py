"""What the gateway tells in /metrics. One set a process."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 320.0, 640.0, 1200.0, 1800.0),
)
REQUESTS = Counter(
    "chunkmesh_gateway_requests",
    "HTTP requests that ended, by route and status: that of the error where a stream broke, and 499"
    " where the client left.",
    ["route", "status"],
)
SECONDS = Histogram(
    "chunkmesh_gateway_request_seconds",
    "From a request's first line to the end of its answer.",
    ["route"],
    buckets=_BUCKETS_S,
)
FIRST_BYTE_SECONDS = Histogram(
    "chunkmesh_gateway_first_byte_seconds",
    "From a request's first line to the begin of its answer.",
    ["route"],
    buckets=_BUCKETS_S,
)
IN_FLIGHT = Gauge(
    "chunkmesh_gateway_requests_in_flight", "HTTP requests that are being answered.", ["route"]
)
CONNECTIONS = Gauge("chunkmesh_gateway_connections", "HTTP connections that are open.")
