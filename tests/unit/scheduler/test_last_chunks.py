"""Prompts that are a little longer than whole chunks of a preferred length."""

from __future__ import annotations

import itertools

from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_model import PipelineLatency, StageLatency

_LATENCY = PipelineLatency((StageLatency(ms_per_token=0.01, ms_per_pair=1e-7),))
_TOKENS = 8 * 512 + 8


def _sizes(max_chunk_ms: float, max_chunk_tokens: int | None = None) -> list[int]:
    """Return the chunks of a prompt that ends eight tokens behind a border."""
    chunks = OptimalChunks(
        latency=_LATENCY,
        page_tokens=64,
        preferred_tokens=512,
        max_chunk_ms=max_chunk_ms,
        max_chunk_tokens=max_chunk_tokens,
    )
    return [end - start for start, end in itertools.pairwise((0, *chunks.cut(0, _TOKENS)))]


def test_a_few_tokens_are_no_chunk_of_their_own() -> None:
    """A chunk of eight tokens takes as long as one that fills the device."""
    assert [512] * 7 + [520] == _sizes(8.0)


def test_they_are_where_the_buffers_hold_no_more() -> None:
    """Stages take no more rows than they have room for."""
    assert [512] * 8 + [8] == _sizes(8.0, max_chunk_tokens=512)


def test_they_are_where_the_time_is_out() -> None:
    """Who waits beside the prompt was promised a limit."""
    sizes = _sizes(5.58)
    starts = itertools.accumulate(sizes[:-1], initial=0)
    times_ms = [
        _LATENCY.chunk_ms(start, start + size) for start, size in zip(starts, sizes, strict=True)
    ]
    assert 8 == sizes[-1]
    assert max(times_ms) <= 5.58
