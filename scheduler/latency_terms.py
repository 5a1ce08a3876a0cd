"""A stage's latency as GetServerInfo tells it, for whoever plans for a mesh from outside."""

from __future__ import annotations

from chunkmesh.v1 import generation_pb2 as pb
from scheduler.latency_model import StageLatency
from scheduler.size_ratios import SizeRatios


def told_latency(terms: pb.LatencyTerms) -> StageLatency:
    """Return what is planned with on a stage."""
    values = {field.name: value for field, value in terms.ListFields()}
    ratios = values.pop("size_ratios", None)
    return StageLatency(
        **values,
        size_ratios=ratios and SizeRatios(tokens=tuple(ratios.tokens), ratios=tuple(ratios.ratios)),
    )
