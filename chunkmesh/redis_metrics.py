"""What is counted of Redis, the same in each service that asks it."""

from __future__ import annotations

from prometheus_client import Counter

REDIS_FAULTS = Counter(
    "chunkmesh_redis_faults",
    "Times that Redis did not do what this service asked: lease of the scheduler; ping and unlink"
    " of hicache-server; read and write of stage workers, which leave it alone for a while then.",
    ["call"],
)
