"""Which chunks are worth measuring, by the guide that users follow by hand. Pure.

First fixed sizes; then dynamic chunks that begin with two and three times the best fixed size, with
some smoothing factors. What the mesh does by itself is always among them.
Source: https://lmsys.org/blog/2026-01-15-chunked-pipeline (the tuning guide)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from scheduler.chunk_dynamic import DynamicChunks
from scheduler.latency_model import PipelineLatency

ALIGN_TOKENS = 64
"""Sizes are multiples of this: chunks of other sizes cost pages and kernels more than they help."""
SMOOTH_FACTORS = (0.65, 0.75, 0.85)
"""Of the range that the guide recommends."""
INITIAL_RATIOS = (2, 3)
"""First dynamic chunk over the best fixed size, as the guide has it."""
_MAX_CHUNKS = 256
"""Of a prompt; smaller sizes are not tried."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to cut prompts."""

    name: str
    """For people, unique."""
    strategy: str
    """fixed, dynamic or optimal."""
    chunk_tokens: tuple[int, ...]
    """GenerateRequest.chunk_tokens; empty leaves the cuts to the mesh."""
    flags: tuple[str, ...]
    """Of chunkmesh-scheduler, to get it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuneLimits:
    """What can be tried on a mesh."""

    prompt_tokens: int
    """Of every prompt measured."""
    max_tokens: int
    """Largest chunk that the stages' buffers hold."""
    page_tokens: int
    context_tokens: int
    """Longest prompt and output together, > prompt_tokens."""


def as_it_runs(strategy: str, max_tokens: int) -> Candidate:
    """Return what the mesh does by itself."""
    return Candidate(
        name=f"as it runs ({strategy})",
        strategy=strategy,
        chunk_tokens=(),
        flags=(f"--chunk-strategy {strategy}", f"--chunked-prefill-size {max_tokens}"),
    )


def first_fixed(limits: TuneLimits) -> list[Candidate]:
    """Return fixed sizes, each twice the one before, and the largest that can be."""
    most = largest_size(limits)
    sizes = set(itertools.takewhile(lambda size: size < most, (64 << n for n in range(30))))
    least = -(-limits.prompt_tokens // _MAX_CHUNKS)
    return [_fixed(size) for size in sorted(sizes | {most}) if size >= least]


def fixed_between(best_tokens: int, tried: Sequence[int], limits: TuneLimits) -> list[Candidate]:
    """Return sizes half-way from the best one to its neighbours, as far as they are new."""
    neighbours = [size for size in tried if size != best_tokens]
    below = max((size for size in neighbours if size < best_tokens), default=None)
    above = min((size for size in neighbours if size > best_tokens), default=None)
    middles = [(size + best_tokens) // 2 for size in (below, above) if size is not None]
    sizes = {middle // ALIGN_TOKENS * ALIGN_TOKENS for middle in middles} - set(tried)
    return [_fixed(size) for size in sorted(sizes) if ALIGN_TOKENS <= size <= largest_size(limits)]


def dynamic_around(
    best_tokens: int, latency: PipelineLatency, limits: TuneLimits
) -> list[Candidate]:
    """Return dynamic chunks, each of other cuts, that begin with more than the best fixed size.

    They are those that the mesh itself would make with the flags of the candidate.
    """
    found: dict[tuple[int, ...], Candidate] = {}
    for ratio, smooth_factor in itertools.product(INITIAL_RATIOS, SMOOTH_FACTORS):
        initial = min(ratio * best_tokens, largest_size(limits))
        chunks = DynamicChunks.of_pipeline(
            latency,
            chunk_tokens=initial,
            page_tokens=limits.page_tokens,
            smooth_factor=smooth_factor,
            context_tokens=limits.context_tokens,
        )
        ends = chunks.cut(0, limits.prompt_tokens)
        sizes = tuple(end - start for start, end in itertools.pairwise((0, *ends)))
        found.setdefault(
            sizes,
            Candidate(
                name=f"dynamic {initial}, factor {smooth_factor:g}",
                strategy="dynamic",
                chunk_tokens=sizes,
                flags=(
                    "--chunk-strategy dynamic",
                    f"--chunked-prefill-size {initial}",
                    f"--dynamic-chunking-smooth-factor {smooth_factor:g}",
                ),
            ),
        )
    return [each for each in found.values() if len(each.chunk_tokens) > 1]


def largest_size(limits: TuneLimits) -> int:
    """Return the largest fixed size that is a multiple of ALIGN_TOKENS, or all there is."""
    most = min(limits.max_tokens, limits.prompt_tokens)
    return most // ALIGN_TOKENS * ALIGN_TOKENS or most


def _fixed(size: int) -> Candidate:
    return Candidate(
        name=f"fixed {size}",
        strategy="fixed",
        chunk_tokens=(size,),
        flags=("--chunk-strategy fixed", f"--chunked-prefill-size {size}"),
    )
