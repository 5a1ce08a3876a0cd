"""Ratios of sizes: between them, beyond them, of several layers together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.size_ratios import MAX_SIZES, SizeRatios

_RATIOS = SizeRatios(tokens=(512, 1024, 4096), ratios=(0.9, 1.0, 1.1))
_STAGE = StageLatency(
    floor_ms=1.0,
    fixed_ms=0.5,
    ms_per_prefix_token=1e-4,
    ms_per_token=0.01,
    ms_per_pair=1e-7,
    ms_per_row=0.2,
    edge_ms=0.25,
    size_ratios=_RATIOS,
)


@pytest.mark.parametrize(
    ("tokens", "ratio"),
    [(512, 0.9), (768, 0.95), (1024, 1.0), (2560, 1.05), (4096, 1.1), (8192, 1.1), (100_000, 1.1)],
)
def test_straight_between_sizes(tokens: int, ratio: float) -> None:
    """One by one and as an array they are the same."""
    assert pytest.approx(ratio) == _RATIOS.at(tokens)
    assert [pytest.approx(ratio)] == _RATIOS.of_sizes(np.array([float(tokens)])).tolist()


@pytest.mark.parametrize(("tokens", "ratio"), [(1, 1.0), (256, 1.0), (384, 0.95)])
def test_nothing_good_is_believed_of_sizes_that_were_not_measured(
    tokens: int, ratio: float
) -> None:
    """Else the shortest would always look best: half a tile takes as long as a whole one."""
    assert pytest.approx(ratio) == _RATIOS.at(tokens)
    worse = SizeRatios(tokens=(512, 1024), ratios=(1.2, 0.9))
    assert [1.2, 1.0] == [worse.at(1), worse.at(4096)]


@pytest.mark.parametrize(
    ("tokens", "ratios", "message"),
    [
        ((), (), "0 sizes and 0 ratios"),
        ((1, 2), (1.0,), "2 sizes and 1 ratios"),
        ((0, 2), (1.0, 1.0), "must be at least 1 and ascend"),
        ((4, 4), (1.0, 1.0), "must be at least 1 and ascend"),
        ((4, 1 << 25), (1.0, 1.0), "a size is 33554432, must be at most 16777216"),
        ((4, 8), (1.0, 1.3), r"a ratio is 1\.3, must be in \[0\.8, 1\.25\]"),
        ((4, 8), (1.0, math.nan), "a ratio is nan"),
        (tuple(range(1, MAX_SIZES + 2)), (1.0,) * (MAX_SIZES + 1), "65 sizes"),
    ],
)
def test_unsound_ratios_are_refused(
    tokens: tuple[int, ...], ratios: tuple[float, ...], message: str
) -> None:
    """They may come from a file."""
    with pytest.raises(ValueError, match=message):
        SizeRatios(tokens=tokens, ratios=ratios)


def test_layers_together_have_the_mean() -> None:
    """A stage made of parts of two, weighted by how much of each; none is 1."""
    other = SizeRatios(tokens=(1024,), ratios=(0.8,))
    mean = SizeRatios.mean([(_RATIOS, 3.0), (other, 1.0)])
    assert mean is not None
    assert (512, 1024, 4096) == mean.tokens
    assert [pytest.approx(r) for r in (0.925, 0.95, 1.075)] == list(mean.ratios)
    half = SizeRatios.mean([(_RATIOS, 1.0), (None, 1.0)])
    assert half is not None
    assert [pytest.approx(r) for r in (0.95, 1.0, 1.05)] == list(half.ratios)
    assert _RATIOS is SizeRatios.mean([(_RATIOS, 1.0), (_RATIOS, 5.0)])
    assert SizeRatios.mean([(None, 1.0), (None, 1.0)]) is None


def test_a_mean_of_many_layers_stays_bounded() -> None:
    """However many sizes all of them know."""
    layers = [SizeRatios(tokens=(size, size + 200), ratios=(0.9, 1.1)) for size in range(1, 150)]
    mean = SizeRatios.mean([(layer, 1.0) for layer in layers])
    assert mean is not None
    assert len(mean.tokens) <= MAX_SIZES


@pytest.mark.parametrize("tokens", [100, 512, 700, 3000, 9000])
def test_a_stage_takes_its_tokens_and_pairs_by_size(tokens: int) -> None:
    """Floor, fixed time, prefix and edge are what they are; a microbatch of a chunk is that."""
    start = 5000
    pairs = (start + tokens) ** 2 - start**2
    own_ms = _RATIOS.at(tokens) * (0.01 * tokens + 1e-7 * pairs)
    expected = 0.25 + max(1.0, 0.5 + 1e-4 * start + own_ms)
    assert pytest.approx(expected) == _STAGE.chunk_ms(start, start + tokens)
    work = Work.of_chunk(start, start + tokens)
    assert pytest.approx(expected) == _STAGE.microbatch_ms(work)
    assert pytest.approx(expected + 0.6) == _STAGE.microbatch_ms(work + Work.of_rows([1, 1, 1]))
    ends = np.array([float(start + tokens)])
    assert [pytest.approx(expected)] == _STAGE.chunks_ms(ends - tokens, ends).tolist()


def test_at_any_size_nothing_takes_longer() -> None:
    """What limits are kept by: no chunk takes longer, and the worst size as long."""
    most = _STAGE.at_any_size()
    assert most.size_ratios is None
    for tokens in (1, 100, 512, 1024, 4096, 20_000):
        assert _STAGE.chunk_ms(64, 64 + tokens) <= most.chunk_ms(64, 64 + tokens) + 1e-9
    assert pytest.approx(most.chunk_ms(0, 4096)) == _STAGE.chunk_ms(0, 4096)


def test_other_ratios_are_another_rhythm() -> None:
    """A stage with smaller terms may be the slowest at some size."""
    faster = StageLatency(ms_per_token=0.0099, ms_per_pair=1e-7)
    assert 2 == len(PipelineLatency((_STAGE, faster)).rhythm())
    assert 1 == len(PipelineLatency((_STAGE, _STAGE.with_overhead(1.0))).rhythm())
