"""The first start measures, the next one reads; what is doubtful is not kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from scheduler.latency_model import Work
from stage_worker.profiler import Profiler
from stage_worker.start_profile import KeptProfile, profile_limits
from tests.timed_stage import ScriptedClock, TimedStage

_LIMITS = profile_limits(device="cpu", tokens=64, kv_capacity_tokens=4096, timeout_s=20)


def _steady_ms(work: Work) -> float:
    return 1 + 0.1 * work.new_tokens + 1e-5 * work.pairs + 0.5 * work.num_rows


def _started(folder: Path, time_ms: Callable[[Work], float]) -> tuple[TimedStage, KeptProfile]:
    """Make the stage and the profile of a start, by a scripted clock."""
    stage = TimedStage(0, 1, time_ms, ScriptedClock())
    profile = KeptProfile(_LIMITS, folder=folder, device="cpu", threads=1)
    profile._profiler = Profiler(_LIMITS, page_tokens=16, clock=stage.clock)
    return stage, profile


def test_the_second_start_is_ready_at_once(tmp_path: Path) -> None:
    """Three short microbatches run; one log line a start says where the points are from."""
    with capture_logs() as logs:
        stage, profile = _started(tmp_path, _steady_ms)
        first = profile.measure(stage)
        again, profile = _started(tmp_path, _steady_ms)
        assert first == profile.measure(again)
    assert (True, 3) == (stage.num_timed > 30, again.num_timed)
    assert (1, 1) == (again._num_pages, again._page_tokens)
    assert [("measured", len(first)), ("disk", len(first))] == [
        (line["source"], line["points"]) for line in logs
    ]


def test_a_damaged_file_is_measured_anew(tmp_path: Path) -> None:
    """And then kept, so that the start after is quick again."""
    stage, profile = _started(tmp_path, _steady_ms)
    profile.measure(stage)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"\x00\xff")
    for is_measured in (True, False):
        stage, profile = _started(tmp_path, _steady_ms)
        profile.measure(stage)
        assert is_measured == (stage.num_timed > 3)


def test_what_a_busy_machine_was_measured_at_is_measured_anew(tmp_path: Path) -> None:
    """Or chunks would be planned for that machine at every later start."""
    stage, profile = _started(tmp_path, lambda work: 3 * _steady_ms(work))
    slow = profile.measure(stage)
    stage, profile = _started(tmp_path, _steady_ms)
    with capture_logs() as logs:
        quick = profile.measure(stage)
    assert "kept profile is of a slower machine and measured anew" == logs[0]["event"]
    assert pytest.approx(slow[0].compute_us / 3, rel=0.01) == quick[0].compute_us
    again, profile = _started(tmp_path, _steady_ms)
    assert quick == profile.measure(again)


def test_a_busy_start_leaves_what_was_kept(tmp_path: Path) -> None:
    """What a quiet machine was measured at is the better guess."""
    stage, profile = _started(tmp_path, _steady_ms)
    first = profile.measure(stage)
    busy, profile = _started(tmp_path, lambda work: 3 * _steady_ms(work))
    assert first == profile.measure(busy)
    assert 3 == busy.num_timed


def test_a_noisy_profile_is_used_but_not_kept(tmp_path: Path) -> None:
    """What was measured on a busy machine must not spoil every later start."""
    dice = random.Random(1)  # noqa: S311 - noise, not secrets
    stage, profile = _started(tmp_path, lambda work: _steady_ms(work) * dice.uniform(1, 3))
    with capture_logs() as logs:
        assert profile.measure(stage)
    assert "profile is noisy and will not be kept" == logs[0]["event"]
    assert [] == list(tmp_path.iterdir())


def test_a_short_profile_is_not_kept(tmp_path: Path) -> None:
    """A machine that was too busy to measure enough may be quieter next time."""
    stage, profile = _started(tmp_path, lambda work: 2000 * _steady_ms(work))
    with capture_logs() as logs:
        profile.measure(stage)
    assert "profile is short and will not be kept" == logs[0]["event"]
    assert [] == list(tmp_path.iterdir())


def test_a_cancelled_profile_is_not_kept(tmp_path: Path) -> None:
    """It has no more than a few points."""
    stage, profile = _started(tmp_path, _steady_ms)
    profile.cancel()
    assert () == profile.measure(stage)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("is_kept", [False, True])
def test_readiness_ends_with_the_profile(tmp_path: Path, *, is_kept: bool) -> None:
    """Percent and work while it runs; afterwards the worker's state is another one."""
    if is_kept:
        stage, profile = _started(tmp_path, _steady_ms)
        profile.measure(stage)
    seen = []

    def watched_ms(work: Work) -> float:
        seen.append(profile.readiness())
        return _steady_ms(work)

    stage, profile = _started(tmp_path, watched_ms)
    before = profile.readiness()
    assert before is not None
    assert (False, "profiling", 0.0) == (before.ready, before.state, before.progress)
    profile.measure(stage)
    assert profile.readiness() is None
    assert is_kept == (len(seen) == 3)
    if not is_kept:
        last = seen[-1]
        assert last is not None
        assert "16 tokens behind 512" == last.reason
        assert last.progress is not None
        assert 0.9 < last.progress < 1


def test_limits_suit_device_and_pool() -> None:
    """A GPU needs longer chunks to be busy; nobody may need more pages than there will be."""
    of = {"kv_capacity_tokens": 1 << 20, "timeout_s": 20.0}
    assert 256 == profile_limits(device="cpu", tokens=None, **of).max_chunk_tokens  # type: ignore[arg-type]
    assert 8192 == profile_limits(device="cuda", tokens=None, **of).max_chunk_tokens  # type: ignore[arg-type]
    small = profile_limits(device="cpu", tokens=512, kv_capacity_tokens=800, timeout_s=10)
    assert (512, 288) == (small.max_chunk_tokens, small.max_prefix_tokens)
    assert small.budget_ms <= 10_000
    tiny = profile_limits(device="cpu", tokens=None, kv_capacity_tokens=16, timeout_s=10)
    assert (16, 0) == (tiny.max_chunk_tokens, tiny.max_prefix_tokens)
