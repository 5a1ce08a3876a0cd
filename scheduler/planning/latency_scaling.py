"""Estimates what a model takes from what another was measured to take. Pure arithmetic.

Products with weights take as long as there are weights for a token, attention as long as a query's
products with a key. A layer takes at least what launching it took, and what reading all its
weights takes. Kernels of other shapes are faster or slower than that: an estimate is for choosing
between clusters, a measurement of the model itself is for promising times.
"""

from __future__ import annotations

import dataclasses
import math

from scheduler.latency_model import StageLatency
from scheduler.planning.model_latency import EdgeLatency, ModelLatency
from scheduler.planning.model_shape import LayerShape, ModelShape


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """One layer's times, and what it was."""

    latency: StageLatency
    shape: LayerShape
    model: str
    device: str
    memory_bytes_per_s: float
    """What the device reads of its memory, > 0."""
    element_bytes: int = 2
    """Of a weight or an activation."""

    def model_latency(self, target: ModelShape) -> ModelLatency:
        """Return what the layers and ends of a model would take on the same device."""
        bytes_per_ms = self.memory_bytes_per_s / 1000
        row_bytes = target.hidden_size * self.element_bytes
        is_same = all(layer == self.shape for layer in target.layers)
        return ModelLatency(
            layers=tuple(map(self._layer, target.layers)),
            edges=EdgeLatency(
                embedding_ms_per_token=2 * row_bytes / bytes_per_ms,  # read and written
                head_ms=target.vocab_size * row_bytes / bytes_per_ms,
            ),
            origin=f"{self.model} on {self.device}",
            is_estimate=not is_same,
        )

    def products_alone(self, target: ModelShape) -> ModelLatency:
        """Return what multiplying takes, as if launching and reading memory took nothing.

        Not what any device takes, but how layers and head share it on all of them.
        """
        latency = dataclasses.replace(self.latency, floor_ms=0.0, fixed_ms=0.0)
        ideal = dataclasses.replace(self, latency=latency, memory_bytes_per_s=math.inf)
        ms_per_parameter = latency.ms_per_token / self.shape.active_parameters
        return ModelLatency(
            layers=ideal.model_latency(target).layers,
            edges=EdgeLatency(
                embedding_ms_per_token=ms_per_parameter * target.hidden_size,  # as one product each
                head_ms=ms_per_parameter * target.head_parameters,
            ),
            origin="each layer's products alone",
            is_estimate=True,
        )

    def _layer(self, target: LayerShape) -> StageLatency:
        """Scale the times to another layer."""
        read_ms = 1000 * target.parameters * self.element_bytes / self.memory_bytes_per_s
        ms_per_parameter = self.latency.ms_per_token / self.shape.active_parameters
        return StageLatency(
            floor_ms=max(self.latency.floor_ms, read_ms),
            fixed_ms=self.latency.fixed_ms,
            ms_per_prefix_token=ms_per_parameter * target.unpacking_parameters,
            ms_per_token=ms_per_parameter * target.active_parameters,
            ms_per_pair=self.latency.ms_per_pair * target.pair_width / self.shape.pair_width,
        )
