"""What each strategy makes of prompts on a cluster. Pure.

`fixed` and `dynamic` are as their users set them; the best of each is found by trying a grid of
settings, as the tuning guide of SGLang tells to do by hand.
Source: https://lmsys.org/blog/2026-01-15-chunked-pipeline (the guide: size and smoothing factor)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from chunkmesh.errors import ConfigError
from scheduler.chunk_dynamic import DynamicChunks
from scheduler.chunk_optimal import OptimalChunks
from scheduler.chunking import FixedChunks
from scheduler.planning.cluster import Cluster, Ends, PromptLoad

_GRID_TOKENS = tuple(size for power in range(6, 18) for size in (1 << power, 3 << (power - 1)))
"""64, 96, 128, 192 and so on to 196608."""
_GRID_SMOOTH_FACTORS = (0.65, 0.75, 0.85, 1.0)
_MAX_GRID_CHUNKS = 2048
"""Sizes that would make more chunks of a prompt are not tried."""
_NUM_RHYTHM = 2
_MAX_SPANS = 1 << 23
"""Chunks of all prompts times stages."""
_DYNAMIC_SHRINKS = 4
"""The dynamic rule makes chunks of at least its first size over this."""


class Strategy(StrEnum):
    """Ways to cut a prompt, in the order in which they are shown."""

    FIXED = "fixed"
    BEST_FIXED = "best-fixed"
    DYNAMIC = "dynamic"
    BEST_DYNAMIC = "best-dynamic"
    OPTIMAL = "optimal"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSettings:
    """What users set of the strategies."""

    page_tokens: int
    """>= 1."""
    chunked_prefill_tokens: int
    """>= 1; size of fixed chunks, and of the first of dynamic ones."""
    smooth_factor: float
    """In [0, 1]; of dynamic chunks."""
    max_chunk_ms: float | None = None
    """Longest optimal chunk on a stage; None leaves it to the plan."""
    chunk_alignment_tokens: int = 0
    """Optimal chunks are multiples of about so many; 0 leaves it to pages."""
    context_tokens: int | None = None
    """Longest prompt and output together, which dynamic chunks look at; None if it is not known."""

    def context_for(self, prompt_tokens: int) -> int | None:
        """Return the context of a pipeline that serves such prompts, as far as it is known.

        One that does not hold the prompt and a token would have to be set to something longer.
        """
        is_held = self.context_tokens is not None and prompt_tokens < self.context_tokens
        return self.context_tokens if is_held else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How prompts are cut."""

    strategy: Strategy
    parameters: Mapping[str, float]
    """What would be set to get them."""
    ends: tuple[Ends, ...]
    """Of each prompt, in the order in which they enter."""

    @property
    def num_chunks(self) -> int:
        """Chunks of all prompts."""
        return sum(map(len, self.ends))


def cut_prompts(
    strategy: Strategy, cluster: Cluster, load: PromptLoad, settings: ChunkSettings
) -> Cuts:
    """Return what a strategy makes of prompts.

    Raises:
        ConfigError: fixed or dynamic chunks would be too many to plan; names the setting.
    """
    size = settings.chunked_prefill_tokens
    match strategy:
        case Strategy.FIXED:
            _check_number(cluster, load, size, size)
            return _fixed(strategy, load, size)
        case Strategy.DYNAMIC:
            _check_number(cluster, load, size, max(size // _DYNAMIC_SHRINKS, 1))
            return _dynamic(strategy, cluster, load, settings)
        case Strategy.BEST_FIXED:
            tried = (_fixed(strategy, load, size) for size in _grid(load, settings))
            return _best(cluster, tried)
        case Strategy.BEST_DYNAMIC:
            return _best(cluster, _dynamic_grid(cluster, load, settings))
        case Strategy.OPTIMAL:
            return _optimal(cluster, load, settings)


def _fixed(strategy: Strategy, load: PromptLoad, size: int) -> Cuts:
    ends = FixedChunks(size).cut(0, load.prompt_tokens)
    parameters = {"chunked_prefill_size": size}
    return Cuts(strategy=strategy, parameters=parameters, ends=(ends,) * load.num_requests)


def _dynamic(
    strategy: Strategy, cluster: Cluster, load: PromptLoad, settings: ChunkSettings
) -> Cuts:
    """Cut as a live pipeline would."""
    chunks = DynamicChunks.of_pipeline(
        cluster.stages,
        chunk_tokens=settings.chunked_prefill_tokens,
        page_tokens=settings.page_tokens,
        smooth_factor=settings.smooth_factor,
        context_tokens=settings.context_for(load.prompt_tokens),
    )
    parameters = {
        "chunked_prefill_size": settings.chunked_prefill_tokens,
        "dynamic_chunking_smooth_factor": settings.smooth_factor,
    }
    ends = chunks.cut(0, load.prompt_tokens)
    return Cuts(strategy=strategy, parameters=parameters, ends=(ends,) * load.num_requests)


def _optimal(cluster: Cluster, load: PromptLoad, settings: ChunkSettings) -> Cuts:
    chunks = OptimalChunks(
        latency=cluster.stages,
        page_tokens=settings.page_tokens,
        max_chunk_ms=settings.max_chunk_ms,
        link=cluster.link,
        window=cluster.window,
        preferred_tokens=settings.chunk_alignment_tokens,
    )
    plan = chunks.cut_all([(0, load.prompt_tokens)] * load.num_requests)
    return Cuts(strategy=Strategy.OPTIMAL, parameters={"slot_ms": plan.slot_ms}, ends=plan.ends)


def _dynamic_grid(cluster: Cluster, load: PromptLoad, settings: ChunkSettings) -> Iterator[Cuts]:
    """Yield dynamic chunks of many first sizes and factors, those that are set among them."""
    smooth_factors = sorted({*_GRID_SMOOTH_FACTORS, settings.smooth_factor})
    for size in _grid(load, settings):
        for smooth_factor in smooth_factors:
            tried = dataclasses.replace(
                settings, chunked_prefill_tokens=size, smooth_factor=smooth_factor
            )
            yield _dynamic(Strategy.BEST_DYNAMIC, cluster, load, tried)


def _grid(load: PromptLoad, settings: ChunkSettings) -> list[int]:
    """Return sizes to try: up to one chunk a prompt, and the size that is set."""
    tokens = load.prompt_tokens
    sizes = {size for size in _GRID_TOKENS if -(-tokens // size) <= _MAX_GRID_CHUNKS}
    if -(-tokens // settings.chunked_prefill_tokens) <= _MAX_GRID_CHUNKS:
        sizes.add(settings.chunked_prefill_tokens)
    below = sorted(size for size in sizes if size < tokens)
    return [*below, tokens]


def _best(cluster: Cluster, tried: Iterable[Cuts]) -> Cuts:
    """Return what is through first; of prompts in a row the first few tell the rhythm.

    Those that cannot be sooner than the best so far are not looked at any further.
    """
    judged = [(cluster.least_finish_ms(cuts.ends[:_NUM_RHYTHM]), cuts) for cuts in tried]
    judged.sort(key=lambda pair: pair[0])
    best, best_ms = judged[0][1], math.inf
    for least_ms, cuts in judged:
        if least_ms >= best_ms:
            break
        finish_ms = cluster.finish_ms(cuts.ends[:_NUM_RHYTHM])
        if finish_ms < best_ms:
            best, best_ms = cuts, finish_ms
    return best


def _check_number(cluster: Cluster, load: PromptLoad, size: int, least_tokens: int) -> None:
    """Refuse what would take minutes and gigabytes to plan."""
    chunks = -(-load.prompt_tokens // least_tokens) * load.num_requests
    if chunks * cluster.num_stages > _MAX_SPANS:
        raise ConfigError(
            f"--chunked-prefill-size {size}: {load.num_requests} prompts of {load.prompt_tokens}"
            f" tokens may be {chunks} chunks, at most {_MAX_SPANS // cluster.num_stages} are"
            f" planned on {cluster.num_stages} stages"
        )
