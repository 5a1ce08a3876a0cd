"""Which weights a worker is told to serve: where they come from, and whether they get eight bits.

Eight-bit weights are other weights: they give other keys and values. So a model that is quantised
at load has another config, whose digest keeps its workers and its cached pages apart.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import structlog

from stage_worker.model_config import ModelConfig
from stage_worker.stage import Backend

_log = structlog.get_logger(__name__)

LoadFormat = Literal["auto", "dummy"]
"""The folder's safetensors, or seeded random weights of its config.json."""
Quantization = Literal["auto", "fp8"]
"""As the checkpoint has the weights, or in eight bits."""
_BLOCK = (128, 128)
"""Rows and columns that share one scale: what DeepGEMM multiplies."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightChoice:
    """What a worker is told."""

    load_format: LoadFormat = "auto"
    quantization: Quantization = "auto"

    def served(self, config: ModelConfig) -> ServedModel:
        """Return the model of a folder as it is served.

        A checkpoint that has eight bits already stays as it is. Random weights are made in full
        width, and quantised where the config says that the model has eight bits.
        """
        if config.fp8_block is not None:
            return ServedModel(config=config, at_load=self.load_format == "dummy")
        if self.quantization == "auto":
            return ServedModel(config=config, at_load=False)
        _log.info("weights are quantised", quantization=self.quantization, block=_BLOCK)
        return ServedModel(config=dataclasses.replace(config, fp8_block=_BLOCK), at_load=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as it is served."""

    config: ModelConfig
    """Not the folder's where weights are quantised that it has in full width."""
    at_load: bool
    """Whether weights that are stored in full width are quantised."""

    def backends(self) -> tuple[Backend, ...]:
        """Name eight-bit weights; full width is not worth a word."""
        block = self.config.fp8_block
        if block is None:
            return ()
        origin = "quantised at load" if self.at_load else "as stored"
        name = f"FP8 in blocks of {block[0]} x {block[1]}, {origin}"
        return (Backend(operation="weights", name=name, reason=""),)


STORED = WeightChoice()
"""The folder's weights as they are."""
DUMMY = WeightChoice(load_format="dummy")
