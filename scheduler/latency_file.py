"""Latencies of a pipeline's stages as a JSON file: kept between starts, or given by users. Pure.

Units are in the names. What is read may come from anybody: sizes and values are checked, and an
error names the field, its value and the limit.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from scheduler.latency_model import StageLatency
from scheduler.size_ratios import SizeRatios

_MAX_BYTES = 1 << 20
_MAX_STAGES = 1024
_MAX_LAYERS = 1024
_MAX_MS = 1e9
"""Of each term: eleven days. Sums over all layers and 16M tokens stay finite."""

Term = Annotated[float, Field(ge=0, le=_MAX_MS, allow_inf_nan=False)]
Layer = Annotated[int, Field(ge=0, lt=_MAX_LAYERS)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SavedStage(_Record):
    """The latency of one stage."""

    first_layer: Layer
    last_layer: Layer
    """Inclusive, as on the command line."""
    floor_ms: Term = 0.0
    fixed_ms: Term = 0.0
    ms_per_prefix_token: Term = 0.0
    ms_per_token: Term
    ms_per_pair: Term
    ms_per_row: Term = 0.0
    ms_per_row_token: Term = 0.0
    edge_ms: Term = 0.0
    rows_fixed_ms: Term | None = None
    """Left out if decode rows alone have none of their own."""
    size_ratios: SizeRatios | None = None
    """Left out if sizes make no difference."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.last_layer < self.first_layer:
            raise ValueError(f"last_layer is {self.last_layer}, less than {self.first_layer}")
        _ = self.latency
        return self

    @classmethod
    def of(cls, layers: LayerRange, latency: StageLatency) -> Self:
        """Record what layers of a stage take."""
        terms = {name: getattr(latency, name) for name in StageLatency.__dataclass_fields__}
        return cls(first_layer=layers.first, last_layer=layers.last - 1, **terms)

    @property
    def layers(self) -> LayerRange:
        """The stage's layers."""
        return LayerRange(first=self.first_layer, last=self.last_layer + 1)

    @property
    def latency(self) -> StageLatency:
        """What they take."""
        terms = {name: getattr(self, name) for name in StageLatency.__dataclass_fields__}
        return StageLatency(**terms)


class LatencyFile(_Record):
    """What was measured, and on what: a fit is used only where all of this is the same."""

    format: Literal["chunkmesh-latency"] = "chunkmesh-latency"
    version: Literal[1] = 1
    model: Annotated[str, Field(max_length=256)]
    """Fingerprint, or a name for people in files that are given."""
    device: Annotated[str, Field(max_length=256)]
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of a worker; None on other devices."""
    stages: Annotated[tuple[SavedStage, ...], Field(min_length=1, max_length=_MAX_STAGES)]
    """Contiguous, in the pipeline's order."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for before, after in itertools.pairwise(self.stages):
            if after.first_layer != before.last_layer + 1:
                raise ValueError(
                    f"a stage begins at layer {after.first_layer},"
                    f" the one before ends with {before.last_layer}"
                )
        return self

    def to_json(self) -> str:
        """Return the file's text."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


def parse_latency_file(text: str, *, name: str) -> LatencyFile:
    """Read the text of a file; name says which, in errors.

    Raises:
        ConfigError: it is too long, not JSON, or a field is wrong.
    """
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"{name} has {len(text)} characters, at most {_MAX_BYTES} are read")
    try:
        return LatencyFile.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{name}: {first_fault(error)}") from error


def first_fault(error: ValidationError) -> str:
    """Say which field is wrong, with its value if that is short, and what it must be."""
    fault = error.errors(include_url=False)[0]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in fault["loc"]).lstrip(".")
    if isinstance(fault["input"], dict | list) or not path:
        return f"{path}: {fault['msg']}" if path else fault["msg"]
    return f"{path} is {str(fault['input'])[:80]}: {fault['msg']}"
