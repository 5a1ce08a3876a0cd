"""What is counted of replicas."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

EVENTS_IGNORED = Counter(
    "chunkmesh_hicache_events_ignored_total",
    "Events of other replicas that could not be read or contradict what is known.",
)
EVENT_GAPS = Counter(
    "chunkmesh_hicache_event_gaps_total",
    "Times that entries of the event stream were cut off before they were read.",
)
EVICTS = Gauge("chunkmesh_hicache_evicts", "Whether this replica evicts: 1 or 0.")
