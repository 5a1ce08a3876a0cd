"""How well the latencies of a mesh's stages are known: as lines, and as a file to give again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from chunkmesh.cli.message_json import fields_of
from chunkmesh.errors import ChunkMeshError, ConfigError, reason_of
from chunkmesh.v1 import generation_pb2 as pb


class LatencyUnknown(ChunkMeshError):
    """There is no latency model to save."""


def fit_lines(info: pb.GetServerInfoResponse) -> Iterator[str]:
    """Yield a line for each stage of the route."""
    for stage, fit in enumerate(info.fits):
        parts = [f"stage {stage}   latency"]
        if fit.HasField("terms"):
            parts.append(f"by {fit.source},")
        if fit.median_error:
            parts.append(f"error {fit.median_error:.1%} (median), {fit.p90_error:.1%} (p90),")
        if fit.num_refits:
            parts.append(f"{fit.num_refits} refit{'' if fit.num_refits == 1 else 's'},")
        parts.append(f"not used: {fit.refused}" if fit.refused else "accepted")
        yield " ".join(parts)


def write_latency_model(
    info: pb.GetServerInfoResponse, model: pb.GetModelInfoResponse, path: Path
) -> None:
    """Write the latencies of a route to a file that --latency-model reads.

    Raises:
        LatencyUnknown: no route stands, or a stage's latency is not accepted.
        ConfigError: the file cannot be written.
    """
    if not info.fits:
        raise LatencyUnknown(f"no latency model to save: {info.reason or 'no stage is known'}")
    for stage, fit in enumerate(info.fits):
        if fit.refused:
            raise LatencyUnknown(f"no latency model to save: stage {stage}: {fit.refused}")
    devices = {worker.device for worker in info.workers if worker.HasField("stage_index")}
    fields = {
        "format": "chunkmesh-latency",
        "version": 1,
        "model": model.fingerprint.hex(),
        "device": ", ".join(sorted(devices)),
        "stages": [_stage(fit) for fit in info.fits],
    }
    try:
        path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--save-latency-model {path}: {reason_of(error)}") from error


def _stage(fit: pb.StageFit) -> dict[str, object]:
    ends = {"first_layer": fit.layers.first, "last_layer": fit.layers.last - 1}
    return {**ends, **fields_of(fit.terms)}
