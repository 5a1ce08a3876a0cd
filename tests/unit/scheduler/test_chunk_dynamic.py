"""SGLang's dynamic chunks: whoever brings its numbers finds them here."""

from __future__ import annotations

import itertools

import pytest

from scheduler.chunk_dynamic import DynamicChunks
from scheduler.latency_fit import LatencyPoint, fit_points
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from tests.chunk_plans import sizes


def _dynamic(chunk_tokens: int, smooth_factor: float, page_tokens: int = 64) -> DynamicChunks:
    return DynamicChunks(
        chunk_tokens=chunk_tokens,
        ms_per_token=0.065536,
        ms_per_pair=1e-6,
        page_tokens=page_tokens,
        smooth_factor=smooth_factor,
    )


_PLANS = {
    (4096, 0.75, 32768): "4096 3776 3520 3328 3200 3072 2944 2816 2752 2688 576",
    (4096, 1.0, 32768): "4096 3648 3328 3136 2880 2752 2624 2496 2368 2304 2240 896",
    (12288, 0.65, 131072): (
        "12288 10496 9472 8832 8320 7936 7616 7360 7168 6976 6848 6720 6592 6464 6400 6272 5312"
    ),
    (18432, 0.8, 131072): "18432 14336 12352 11136 10304 9664 9152 8768 8448 8128 7872 7680 4800",
    (4096, 0.0, 20000): "4096 4096 4096 4096 3616",
}


@pytest.mark.parametrize(("case", "expected"), _PLANS.items())
def test_whole_plans(case: tuple[int, float, int], expected: str) -> None:
    """Checked against the original rule."""
    chunk_tokens, smooth_factor, tokens = case
    plan = sizes(0, _dynamic(chunk_tokens, smooth_factor).cut(0, tokens))
    assert [int(size) for size in expected.split()] == plan


def test_long_plans() -> None:
    """Checked against the original rule: number, first and last chunks."""
    million = sizes(0, _dynamic(12288, 0.75).cut(0, 1048576))
    assert (265, [12288, 10240, 9088, 8320]) == (len(million), million[:4])
    assert [3392, 3392, 960] == million[-3:]
    steep = sizes(0, _dynamic(12288, 1.0).cut(0, 131072))
    assert (28, [12288, 9536, 8128, 7168, 6528]) == (len(steep), steep[:5])
    assert [3072, 3072, 128] == steep[-3:]


@pytest.mark.parametrize(("done", "size"), [(4096, 3584), (8192, 3328), (65536, 2048)])
def test_larger_pages(done: int, size: int) -> None:
    """Sizes are rounded down to whole pages."""
    assert size == _dynamic(4096, 0.75, page_tokens=256).next_tokens(done)


@pytest.mark.parametrize(
    ("done", "size"),
    [(0, 4096), (4096, 3776), (130772, 192), (130845, 64), (130909, None), (131008, None)],
)
def test_near_the_end_of_the_context(done: int, size: int | None) -> None:
    """The rule keeps 100 tokens free, and has no answer where less than a unit is left."""
    dynamic = DynamicChunks(
        chunk_tokens=4096,
        ms_per_token=0.065536,
        ms_per_pair=1e-6,
        page_tokens=1,
        context_tokens=131072,
    )
    assert size == dynamic.next_tokens(done)
    ends = dynamic.cut(130000, 131072)
    assert 131072 == ends[-1]


def test_no_answer_means_the_initial_size() -> None:
    """As in the original, where the static size then stands; the rest may be less."""
    dynamic = DynamicChunks(
        chunk_tokens=64, ms_per_token=1.0, ms_per_pair=1e-3, page_tokens=64, context_tokens=164
    )
    assert [64, 64, 36] == sizes(0, dynamic.cut(0, 164))


def test_prefill_limit_caps_later_chunks() -> None:
    """max_prefill_tokens is a cap of the rule, rounded down to the alignment."""
    dynamic = DynamicChunks(
        chunk_tokens=4096,
        ms_per_token=1.0,
        ms_per_pair=0.0,
        page_tokens=64,
        max_prefill_tokens=1000,
    )
    assert [4096, 960, 960, 184] == sizes(0, dynamic.cut(0, 6200))


def test_first_chunk_behind_a_hit_is_the_initial_size() -> None:
    """The rule is asked only from the second chunk on."""
    assert 4096 == sizes(65536, _dynamic(4096, 1.0).cut(65536, 131072))[0]


def _outlier_points(base_tokens: int) -> list[LatencyPoint]:
    """O22: 128 samples down from 1.25 times the base; the first took 7234 ms."""
    longest = base_tokens * 5 // 4
    step = longest // 128
    lengths = range(longest, 0, -step)[:128]
    times_ms = [7234.0, *(2e-6 * x * x + 0.02 * x + 5 for x in lengths[1:])]
    return [
        LatencyPoint(work=Work.of_chunk(0, x), ms=ms)
        for x, ms in zip(lengths, times_ms, strict=True)
    ]


def _planned_by(base_tokens: int, smooth_factor: float) -> tuple[StageLatency, DynamicChunks]:
    latency = fit_points(_outlier_points(6144 if base_tokens == 4096 else base_tokens))
    return latency, DynamicChunks.of_pipeline(
        PipelineLatency((latency,)),
        chunk_tokens=base_tokens,
        page_tokens=64,
        smooth_factor=smooth_factor,
        context_tokens=None,
    )


def test_o22_sizes_before_rounding() -> None:
    """O22: each planned chunk costs 115.47 ms by the model, in spite of the outlier."""
    latency, dynamic = _planned_by(4096, 1.0)
    planned, done = [], 0.0
    for _ in range(6):
        size = dynamic.equal_time_tokens(done)
        cost_ms = latency.ms_per_token * size + latency.ms_per_pair * size * (2 * done + size)
        assert pytest.approx(115.47, abs=0.01) == cost_ms
        planned.append(size)
        done += size
    expected = [4096, 2756.2, 2226.6, 1919.6, 1712.8, 1561.2]
    assert pytest.approx(expected, abs=0.06) == planned


@pytest.mark.parametrize("base_tokens", [4096, 3072])
@pytest.mark.parametrize("tokens", [5000, 32768, 100_001])
def test_o22_rounded_sizes(base_tokens: int, tokens: int) -> None:
    """O22: multiples of the page, never growing, exactly the prompt; base 3072 starts too."""
    _, dynamic = _planned_by(base_tokens, 0.75)
    plan = sizes(0, dynamic.cut(0, tokens))
    assert tokens == sum(plan)
    assert all(size % 64 == 0 for size in plan[:-1])
    assert all(first >= second for first, second in itertools.pairwise(plan))


def test_o22_behind_a_million_tokens() -> None:
    """O22: where the formula gives 28.7 tokens the plan still moves by a page, and ends."""
    _, dynamic = _planned_by(4096, 1.0)
    assert pytest.approx(28.7, abs=0.05) == dynamic.equal_time_tokens(1_000_000)
    plan = sizes(1_000_000, dynamic.cut(1_000_000, 1_010_000))
    assert 10_000 == sum(plan)
    assert min(plan[:-1]) >= 64
