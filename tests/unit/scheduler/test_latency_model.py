"""The time of a microbatch on a stage, and on the slowest of a pipeline."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from scheduler.latency_model import PipelineLatency, StageLatency, Work

_STAGE = StageLatency(
    floor_ms=4.0,
    fixed_ms=1.0,
    ms_per_prefix_token=1e-3,
    ms_per_token=1e-2,
    ms_per_pair=1e-5,
    ms_per_row=0.5,
    ms_per_row_token=1e-3,
    edge_ms=0.25,
)


def test_chunk_by_hand() -> None:
    """A chunk of 1000 behind 200: 1 fixed, 0.2 prefix, 10 tokens, 14 pairs, 0.25 edge."""
    assert 2 * 200 * 1000 + 1000 * 1000 == Work.of_chunk(200, 1200).pairs
    assert pytest.approx(25.45) == _STAGE.chunk_ms(200, 1200)


def test_small_work_takes_the_floor() -> None:
    """The floor is the layers' alone; embedding or head comes on top."""
    assert pytest.approx(4.25) == _STAGE.chunk_ms(0, 1)
    assert pytest.approx(4.25) == _STAGE.microbatch_ms(Work())


def test_microbatch_of_chunks_and_rows() -> None:
    """The fixed part is paid once for all parts of a microbatch."""
    work = Work.of_chunk(0, 1000) + Work.of_chunk(500, 600) + Work.of_rows([100, 300])
    expected = 0.25 + 1 + 0.5 + 11 + (1000**2 + 600**2 - 500**2) * 1e-5 + 2 * 0.5 + 0.4
    assert pytest.approx(expected) == _STAGE.microbatch_ms(work)


def test_arrays_agree_with_single_chunks() -> None:
    """Planning looks at many chunks at once."""
    starts, ends = np.array([0.0, 64.0, 1e6]), np.array([64.0, 4096.0, 1e6 + 1])
    single = [_STAGE.chunk_ms(int(s), int(e)) for s, e in zip(starts, ends, strict=True)]
    assert pytest.approx(single) == _STAGE.chunks_ms(starts, ends).tolist()


def test_pairs_telescope() -> None:
    """However a prompt is cut, tokens and pairs cost the same: only chunks cost more."""
    free = dataclasses.replace(_STAGE, floor_ms=0, fixed_ms=0, ms_per_prefix_token=0, edge_ms=0)
    cuts = [0, 17, 640, 641, 5000]
    parts = sum(free.chunk_ms(start, end) for start, end in itertools.pairwise(cuts))
    assert pytest.approx(free.chunk_ms(0, 5000)) == parts


def test_layers_scale_and_overhead_does_not() -> None:
    """A stage of n layers takes n times a layer; the mesh's own time is paid once a stage."""
    stage = _STAGE.of_layers(9).with_overhead(0.5)
    assert pytest.approx(9 * (_STAGE.chunk_ms(0, 9000) - 0.25) + 0.75) == stage.chunk_ms(0, 9000)
    assert pytest.approx(36.75) == stage.chunk_ms(0, 1)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_impossible_terms_are_refused(value: float) -> None:
    """A negative term would make some plan look free."""
    with pytest.raises(ValueError, match=r"ms_per_pair is .*, must be finite and >= 0"):
        dataclasses.replace(_STAGE, ms_per_pair=value)


def test_prefix_costs_no_more_than_tokens() -> None:
    """Else a later start would slow a chunk down, and no border could be searched for."""
    with pytest.raises(ValueError, match=r"ms_per_prefix_token is 0\.02, must be at most"):
        dataclasses.replace(_STAGE, ms_per_prefix_token=0.02)


def test_slowest_stage_sets_the_rhythm() -> None:
    """Which one that is may depend on the chunk; stages slow in nothing are not looked at."""
    head = dataclasses.replace(_STAGE, edge_ms=5.0)
    deep = _STAGE.of_layers(2)
    pipeline = PipelineLatency((_STAGE, deep, head, deep))
    assert {head, deep} == set(pipeline.rhythm())
    assert head.chunk_ms(0, 1) == pipeline.chunk_ms(0, 1)
    assert deep.chunk_ms(0, 9000) == pipeline.chunk_ms(0, 9000)
    work = Work.of_chunk(0, 9000)
    assert deep.microbatch_ms(work) == pipeline.microbatch_ms(work)
    starts, ends = np.array([0.0, 0.0]), np.array([1.0, 9000.0])
    expected = [head.chunk_ms(0, 1), deep.chunk_ms(0, 9000)]
    assert pytest.approx(expected) == pipeline.chunks_ms(starts, ends).tolist()


def test_pipeline_has_a_stage() -> None:
    """Nobody is the slowest of nobody."""
    with pytest.raises(ValueError, match="at least one stage"):
        PipelineLatency(())
