"""Which chunk strategy a route can have, and why if it is not the one asked for. Pure."""

from __future__ import annotations

import dataclasses

from scheduler.budget import Budget, TokenBudget
from scheduler.chunk_dynamic import DynamicChunks
from scheduler.chunk_optimal import OptimalChunks
from scheduler.chunking import FixedChunks
from scheduler.engine_config import ChunkStrategyName, EngineConfig
from scheduler.latency_model import PipelineLatency
from scheduler.pipeline_time import NO_LINK, LinkTime
from scheduler.slot_budget import SlotBudget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChoice:
    """The strategy in use."""

    strategy: ChunkStrategyName
    reason: str
    """Why it is not the one asked for, in words; empty if it is."""


def choose(config: EngineConfig, latency: PipelineLatency | None) -> ChunkChoice:
    """Fall back to fixed chunks where the one asked for cannot plan with what is known."""
    asked = config.chunk_strategy
    if asked == "fixed":
        return ChunkChoice(strategy=asked, reason="")
    if latency is None:
        reason = f"{asked} needs the latency of all stages, which is not known well enough"
    elif not is_plannable(latency):
        reason = f"{asked} needs a latency that grows with the chunk, and that of no stage does"
    else:
        return ChunkChoice(strategy=asked, reason="")
    return ChunkChoice(strategy="fixed", reason=reason)


def is_plannable(latency: PipelineLatency) -> bool:
    """Say whether a longer chunk takes longer on some stage."""
    return any(stage.ms_per_token > 0 or stage.ms_per_pair > 0 for stage in latency.stages)


def budget_for(
    strategy: ChunkStrategyName,
    config: EngineConfig,
    latency: PipelineLatency | None,
    *,
    preferred_tokens: int = 0,
    link: LinkTime = NO_LINK,
) -> Budget:
    """Make the budget of a chosen strategy.

    Optimal chunks are multiples of what is preferred, and look at links and window.
    """
    max_tokens = config.chunked_prefill_tokens
    if strategy == "fixed" or latency is None:
        return TokenBudget(FixedChunks(max_tokens), max_tokens)
    if strategy == "dynamic":
        dynamic = DynamicChunks.of_pipeline(
            latency,
            chunk_tokens=max_tokens,
            page_tokens=config.page_tokens,
            smooth_factor=config.dynamic_smooth_factor,
            context_tokens=config.context_tokens,
        )
        return TokenBudget(dynamic, max_tokens)
    optimal = OptimalChunks(
        latency=latency,
        page_tokens=config.page_tokens,
        max_chunk_tokens=max_tokens,
        max_chunk_ms=config.max_chunk_ms,
        link=link,
        window=config.window(latency.num_stages),
        preferred_tokens=preferred_tokens,
    )
    return SlotBudget(optimal, max_tokens)
