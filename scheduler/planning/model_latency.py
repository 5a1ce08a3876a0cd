"""What each layer of a model takes on one device, so that it can be split in any way. Pure.

Chunks are cut by what every microbatch takes. The head is apart: it runs only for the tokens that
are sampled, so once a prompt.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Self

from chunkmesh.layers import LayerRange
from scheduler.latency_file import LatencyFile
from scheduler.latency_model import TERMS, PipelineLatency, StageLatency, rows_fixed_ms
from scheduler.size_ratios import SizeRatios

_SUMMED = ("floor_ms", *TERMS)
"""What a stage has once for each of its layers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLatency:
    """What microbatches take beside the layers, by where a stage stands; all >= 0."""

    every_ms: float = 0.0
    """On every stage."""
    first_ms: float = 0.0
    """More on the first."""
    last_ms: float = 0.0
    """More on the last."""
    embedding_ms_per_token: float = 0.0
    """On the first stage."""
    head_ms: float = 0.0
    """On the last stage, of a microbatch that ends a prompt."""

    def at(self, *, is_first: bool, is_last: bool) -> float:
        """Return what each microbatch takes on a stage, the head not included."""
        return self.every_ms + is_first * self.first_ms + is_last * self.last_ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelLatency:
    """A model's layers and ends."""

    layers: tuple[StageLatency, ...]
    """One for each layer, at least one; edge_ms is 0."""
    edges: EdgeLatency
    origin: str
    """Where the figures come from, for people."""
    is_estimate: bool
    """Whether they were scaled from those of another model."""

    @classmethod
    def of_file(cls, file: LatencyFile) -> Self:
        """Spread each measured stage evenly over its layers.

        Stages in between have the least edge of all; what the first and the last have more is
        theirs wherever the model is cut.
        """
        every_ms = min(stage.edge_ms for stage in file.stages)
        return cls(
            layers=tuple(
                _share(stage.latency, stage.layers.num_layers)
                for stage in file.stages
                for _ in range(stage.layers.num_layers)
            ),
            edges=EdgeLatency(
                every_ms=every_ms,
                first_ms=file.stages[0].edge_ms - every_ms,
                last_ms=file.stages[-1].edge_ms - every_ms,
            ),
            origin=f"{short_name(file.model)} on {file.device}",
            is_estimate=False,
        )

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.layers)

    def with_overhead(self, overhead_ms: float) -> Self:
        """Return the model when each microbatch takes overhead_ms more on every stage."""
        edges = dataclasses.replace(self.edges, every_ms=self.edges.every_ms + overhead_ms)
        return dataclasses.replace(self, edges=edges)

    def stage(self, layers: LayerRange) -> StageLatency:
        """Return what a stage of these layers takes."""
        is_first, is_last = layers.first == 0, layers.last == self.num_layers
        held = self.layers[layers.first : layers.last]
        terms = {name: sum(getattr(layer, name) for layer in held) for name in _SUMMED}
        if is_first:
            terms["ms_per_token"] += self.edges.embedding_ms_per_token
        return StageLatency(
            **terms,
            edge_ms=self.edges.at(is_first=is_first, is_last=is_last),
            rows_fixed_ms=rows_fixed_ms([(layer, 1.0) for layer in held]),
            size_ratios=SizeRatios.mean([(layer.size_ratios, 1.0) for layer in held]),
        )

    def pipeline(self, ranges: Sequence[LayerRange]) -> PipelineLatency:
        """Return what the stages of a partition take."""
        return PipelineLatency(tuple(map(self.stage, ranges)))

    def whole(self) -> StageLatency:
        """Return what one stage with all layers takes."""
        return self.stage(LayerRange(first=0, last=self.num_layers))


def _share(stage: StageLatency, num_layers: int) -> StageLatency:
    """Return one of a stage's equal layers, without its edge."""
    terms = {name: getattr(stage, name) / num_layers for name in _SUMMED}
    return StageLatency(
        **terms,
        rows_fixed_ms=rows_fixed_ms([(stage, 1 / num_layers)]),
        size_ratios=stage.size_ratios,
    )


def short_name(model: str) -> str:
    """Cut a fingerprint to what people tell apart; names stay."""
    is_fingerprint = re.fullmatch("[0-9a-f]{64}", model) is not None
    return f"model {model[:12]}" if is_fingerprint else model
