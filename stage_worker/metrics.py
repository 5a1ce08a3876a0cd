"""What a stage worker tells in /metrics of its time, its link and its pages. One set a process.

A worker is one stage at a time; workers of a stage are told apart by where they are scraped.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Histogram

BUSY = Counter(
    "chunkmesh_stage_busy_seconds", "Time in which the stage computed or prepared to.", ["stage"]
)
IDLE = Counter(
    "chunkmesh_stage_idle_seconds",
    "Time in which the stage waited: bubble, for the stage before; starved, for something to do;"
    " blocked, for a free slot to the next stage.",
    ["stage", "cause"],
)
_SENT_BYTES = Counter(
    "chunkmesh_activation_bytes",
    "Payload of activations that a link has sent; it is named by its stages.",
    ["link", "transport"],
)
_SEND_SECONDS = Histogram(
    "chunkmesh_activation_seconds",
    "Time that the send of an activation took.",
    ["link", "transport"],
    buckets=(
        *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
        *(5.0, 30.0),
    ),
)
_TRANSFER_BUCKETS_S = (0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 100.0, 300.0)
_LOADED_PAGES = Counter("chunkmesh_pages_loaded", "Cached pages that loads have read from Redis.")
_LOADED_BYTES = Counter(
    "chunkmesh_pages_loaded_bytes",
    "Bytes of its layers that this stage's loads have read from Redis.",
)
_LOAD_SECONDS = Histogram(
    "chunkmesh_load_seconds",
    "From the order to load pages to its end; of loads that read any.",
    buckets=_TRANSFER_BUCKETS_S,
)
NOT_LOADED_PAGES = Counter(
    "chunkmesh_pages_not_loaded",
    "Cached pages that were to be loaded and were not, by what ended their load.",
    ["reason"],
)
_STORED_PAGES = Counter("chunkmesh_pages_stored", "Full pages that stores have written to Redis.")
_STORED_BYTES = Counter(
    "chunkmesh_pages_stored_bytes", "Bytes of its layers that this stage has written to Redis."
)
_STORE_SECONDS = Histogram(
    "chunkmesh_store_seconds",
    "From the begin of a store to its end, its time in the queue left out; of stores that wrote.",
    buckets=_TRANSFER_BUCKETS_S,
)
NOT_STORED_PAGES = Counter(
    "chunkmesh_pages_not_stored",
    "Full pages that were to be stored and were not: no room in the queue; or redis did not take"
    " them, or they were not tried because it was away or their epoch was over.",
    ["reason"],
)
_RESTORED_BYTES = Counter(
    "chunkmesh_pages_restored_bytes",
    "Bytes of pages that were copied from host memory to the pool.",
)
_RESTORE_SECONDS = Counter(
    "chunkmesh_pages_restored_seconds", "Time that copies from host memory to the pool took."
)


def sends_of(stage: int, transport: str) -> Callable[[int, float], None]:
    """Return what counts each send of a stage to the next, given its bytes and seconds."""
    link = f"{stage}-{stage + 1}"
    sent_bytes = _SENT_BYTES.labels(link, transport)
    seconds = _SEND_SECONDS.labels(link, transport)

    def count(num_bytes: int, took_s: float) -> None:
        sent_bytes.inc(num_bytes)
        seconds.observe(took_s)

    return count


def count_load(num_pages: int, num_bytes: int, took_s: float) -> None:
    """Count what a load has read from Redis."""
    if num_pages:
        _LOADED_PAGES.inc(num_pages)
        _LOADED_BYTES.inc(num_bytes)
        _LOAD_SECONDS.observe(took_s)


def count_store(num_pages: int, page_bytes: int, took_s: float) -> None:
    """Count what a store has written to Redis."""
    if num_pages:
        _STORED_PAGES.inc(num_pages)
        _STORED_BYTES.inc(num_pages * page_bytes)
        _STORE_SECONDS.observe(took_s)


def count_restored(num_bytes: int, took_s: float) -> None:
    """Count what was copied from host memory."""
    if num_bytes:
        _RESTORED_BYTES.inc(num_bytes)
        _RESTORE_SECONDS.inc(took_s)
