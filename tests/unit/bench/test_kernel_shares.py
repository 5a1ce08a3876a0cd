"""What a trace of chunks tells: kinds of kernels, gaps, and what the host did meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.kernel_shares import LAUNCH, kind_of, longest, merged, shares, whole

THREAD, OTHER_THREAD = 7, 8


def _event(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **more}


def _call(name: str, ts: float, correlation: int, *, tid: int = THREAD) -> dict[str, Any]:
    args = {"correlation": correlation}
    return _event("cuda_runtime", name, ts, 1, tid=tid, args=args)


def _kernel(name: str, ts: float, dur: float, correlation: int) -> dict[str, Any]:
    return _event("kernel", name, ts, dur, args={"correlation": correlation})


def _two_chunks() -> list[dict[str, Any]]:
    """Return a chunk on the GPU from 10 to 1000 us, and one launched beside it, to 2000."""
    return [
        _event("user_annotation", LAUNCH, 0, 100, tid=THREAD),
        _call("cudaLaunchKernel", 5, 1),
        _kernel("nvjet_tst_256x128", 10, 990, 1),
        _event("user_annotation", LAUNCH, 900, 200, tid=THREAD),
        _call("cuLaunchKernelEx", 910, 2),
        _call("cudaLaunchKernel", 920, 3),
        _kernel("flash_fwd_sm90", 1050, 450, 2),
        _kernel("nvjet_tst_256x128", 1500, 400, 3),
        _call("cudaMemcpyAsync", 930, 4),
        _event("gpu_memcpy", "Memcpy HtoD", 1950, 50, args={"correlation": 4}),
        _call("cudaEventSynchronize", 950, 5, tid=OTHER_THREAD),
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "products"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u>", "products"),
        ("void deep_gemm::transpose_fp32<512u>", "other"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>", "products"),
        ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("_attend", "attention"),
        ("_add_norm", "other"),
        ("_gated_silu", "other"),
        ("_quantise", "other"),
        ("void at::native::vectorized_elementwise_kernel<4>", "other"),
    ],
)
def test_kernels_are_known_by_their_names(name: str, kind: str) -> None:
    """A kernel in the wrong class would blame the wrong one."""
    assert kind_of(name) == kind


def test_a_chunk_lasts_from_the_end_of_the_one_before() -> None:
    """Gaps on the GPU are somebody's loss: they must not fall between two chunks."""
    found = shares(_two_chunks(), (0, 2048))
    assert found is not None
    assert found.prefix == 2048
    assert found.wall_ms == pytest.approx(1.0)
    assert found.by_kind == pytest.approx(
        {"products": 0.4, "attention": 0.45, "other": 0.0, "copies": 0.05}
    )
    assert found.idle_ms == pytest.approx(0.1)


def test_the_host_s_work_beside_the_gpu_is_counted() -> None:
    """It is what launching ahead is for."""
    found = shares(_two_chunks(), (0, 2048))
    assert found is not None
    assert found.host_ms == pytest.approx(0.2)
    assert found.overlap_ms == pytest.approx(0.1)


def test_only_waits_of_the_launching_thread_count() -> None:
    """Another thread waits for the GPU on purpose."""
    trace = _two_chunks()
    found = shares(trace, (0, 2048))
    assert found is not None
    assert found.waits == 0
    waits = [
        _call("cudaStreamSynchronize", 960, 6),
        _call("cudaMemcpy", 970, 7),
        _call("cudaMemcpyAsync", 980, 8),
        _call("cudaStreamSynchronize", 500, 9),
        _call("cudaFree", 990, 10),
    ]
    found = shares([*trace, *waits], (0, 2048))
    assert found is not None
    assert (found.waits, found.allocations) == (2, 1)


def test_a_trace_without_kernels_tells_nothing() -> None:
    """A profiler that sees no GPU must not make zeros of it."""
    trace = [each for each in _two_chunks() if each["cat"] != "kernel"]
    assert shares(trace[:2], (0, 2048)) is None


def test_kernels_are_summed_by_name() -> None:
    """The table's check on the classes is who took longest."""
    ((name, ms),) = longest(_two_chunks(), 1)
    assert (name, round(ms, 6)) == ("nvjet_tst_256x128", 1.39)


def test_spans_that_meet_are_one() -> None:
    """Two streams at once must not count twice as busy."""
    assert merged([(3, 5), (0, 2), (1, 3), (8, 9)]) == [(0, 5), (8, 9)]


def test_sums_lie_on_the_lines_between_points() -> None:
    """A chunk's time grows linearly with its prefix, so few points stand for all chunks."""
    points = [(2.0, 5.0), (4.0, 9.0), (8.0, 17.0)]
    assert whole(points, range(10)) == pytest.approx(sum(2 * x + 1 for x in range(10)))
