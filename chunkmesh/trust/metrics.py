"""What is counted of refusals and of files that are read again."""

from __future__ import annotations

from prometheus_client import Counter

REFUSED_CALLS = Counter(
    "chunkmesh_refused_calls_total",
    "Calls refused for who made them.",
    ["door", "reason"],
)
RELOADS = Counter(
    "chunkmesh_trust_reloads_total",
    "Times that changed certificate or key files were read again, by how that went.",
    ["files", "result"],
)
