"""Dummy microbatches are like real ones, in bounded time, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scheduler.latency_model import StageLatency, Work
from stage_worker.launched import Computed, Finished
from stage_worker.model_stage import load_stage
from stage_worker.orders import Entry, Microbatch
from stage_worker.profile_plan import ProfileLimits
from stage_worker.profiler import Profiler
from stage_worker.stage import StageOutput
from tests.bytes_tokenizer import write_bytes_folder
from tests.timed_stage import ScriptedClock, TimedStage, work_of
from tests.tiny_models import make_tiny_llama

_TRUTH = StageLatency(fixed_ms=2.0, ms_per_token=0.5, ms_per_pair=1e-5, ms_per_row=3.0)


def _limits(budget_ms: float = 20_000.0) -> ProfileLimits:
    return ProfileLimits(
        max_chunk_tokens=64, max_prefix_tokens=256, max_rows=8, budget_ms=budget_ms
    )


def _timed_stage() -> TimedStage:
    return TimedStage(1, 3, _TRUTH.microbatch_ms, ScriptedClock())


def test_times_are_those_of_the_stage() -> None:
    """What is told must be the stage's time for the very work that is told."""
    stage = _timed_stage()
    points = Profiler(_limits(), page_tokens=16, clock=stage.clock).measure(stage)
    assert len(points) > 30
    for point in points:
        shape = point.shape
        work = Work.of_chunk(shape.prefix_tokens, shape.prefix_tokens + shape.chunk_tokens)
        if shape.num_rows:
            work = Work.of_rows([shape.prefix_tokens + 1] * shape.num_rows)
        assert pytest.approx(_TRUTH.microbatch_ms(work) * 1000, abs=1) == point.compute_us


class LaunchedStage(TimedStage):
    """Launches; the first of two microbatches takes longer by what the host does before it."""

    num_launched = 0

    def launch(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> Computed:
        """Compute at once."""
        started_s = self.clock.now_s
        self.num_launched += 1
        self.clock.now_s += self.num_launched % 2
        output = self.forward(microbatch, hidden_in_TD, hidden_out_TD)
        return Computed(Finished(output=output, started_s=started_s, ended_s=self.clock.now_s))


def test_a_device_is_timed_while_it_is_busy() -> None:
    """That is how it works when it serves; alone, it would wait for its host first."""
    stage = LaunchedStage(1, 3, _TRUTH.microbatch_ms, ScriptedClock())
    points = Profiler(_limits(200_000.0), page_tokens=16, clock=stage.clock).measure(stage)
    assert len(points) > 30
    assert all(point.compute_us < 1_000_000 for point in points)
    assert points[0].compute_us == pytest.approx(
        _TRUTH.microbatch_ms(Work.of_chunk(0, points[0].shape.chunk_tokens)) * 1000, abs=1
    )


def test_points_may_be_told_by_another_clock() -> None:
    """On a busy machine the wall bounds the profile, and processor time tells of the stage."""
    stage = _timed_stage()
    profiler = Profiler(
        _limits(500.0),
        page_tokens=16,
        clock=stage.clock,
        compute_clock=lambda: stage.clock.now_s / 2,
    )
    points = profiler.measure(stage)
    assert stage.clock.now_s <= 0.5
    work = Work.of_chunk(0, points[0].shape.chunk_tokens)
    assert pytest.approx(_TRUTH.microbatch_ms(work) * 500, abs=1) == points[0].compute_us


def test_rows_and_pool_are_given_back() -> None:
    """A row that stays would collide with a request's, a pool that stays wastes memory."""
    stage = _timed_stage()
    Profiler(_limits(), page_tokens=16, clock=stage.clock).measure(stage)
    assert {} == stage.tables
    assert (1, 1) == (stage._num_pages, stage._page_tokens)


@pytest.mark.parametrize("budget_ms", [200.0, 500.0, 2000.0])
def test_the_wall_clock_bounds_it(budget_ms: float) -> None:
    """Whatever a stage costs, its worker must serve in time."""
    stage = _timed_stage()
    points = Profiler(_limits(budget_ms), page_tokens=16, clock=stage.clock).measure(stage)
    assert stage.clock.now_s * 1000 <= budget_ms
    assert points


def test_cancelled() -> None:
    """A worker that is told to end must not finish its profile first."""
    stage = _timed_stage()
    profiler = Profiler(_limits(), page_tokens=16, clock=stage.clock)

    def cancelling_ms(work: Work) -> float:
        if stage.num_timed == 7:
            profiler.cancel()
        return _TRUTH.microbatch_ms(work)

    stage.time_ms = cancelling_ms
    profiler.measure(stage)
    assert 8 == stage.num_timed
    assert profiler.progress < 1
    assert {} == stage.tables


def test_progress_is_told_while_it_runs() -> None:
    """Somebody who waits must see that it goes on, and at what."""
    stage = _timed_stage()
    profiler = Profiler(_limits(), page_tokens=16, clock=stage.clock)
    seen: list[tuple[float, str]] = []

    def watching_ms(work: Work) -> float:
        seen.append((profiler.progress, profiler.doing))
        return _TRUTH.microbatch_ms(work)

    stage.time_ms = watching_ms
    profiler.measure(stage)
    assert (0.0, "16 tokens behind 0") == seen[0]
    assert "8 decode rows behind 256" in {doing for _, doing in seen}
    assert sorted(progress for progress, _ in seen) == [progress for progress, _ in seen]
    assert 1.0 == profiler.progress


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of four layers."""
    folder = tmp_path_factory.mktemp("tiny")
    write_bytes_folder(folder)
    make_tiny_llama(folder)
    return folder


@pytest.mark.parametrize("layers", [range(2), range(1, 3), range(2, 4), range(4)])
def test_every_stage_of_a_model_can_be_measured(tiny: Path, layers: range) -> None:
    """Ids for the first, activations between, sampling on the last: none may be missing."""
    stage = load_stage(tiny, layers=layers)
    points = Profiler(_limits(), page_tokens=16).measure(stage)
    assert {"64 tokens behind 256", "8 decode rows behind 256"} <= {str(p.shape) for p in points}


def test_nothing_is_left_in_the_pool(tiny: Path) -> None:
    """Also where the mesh's pool is as large as the profile's, which a stage would keep."""
    stage = load_stage(tiny, layers=range(2))
    Profiler(_limits(), page_tokens=16).measure(stage)
    num_pages = (256 + 64) // 16
    stage.allocate(num_pages=num_pages, page_tokens=16)
    assert not any(
        stage.read_page(layer, page).any() for layer in range(2) for page in range(num_pages)
    )
    assert 0 == stage._workspace._capacity


def test_outputs_are_the_same_after_a_profile(tiny: Path) -> None:
    """A measured stage must compute what one does that was not."""
    plain, measured = (load_stage(tiny, layers=range(2)) for _ in range(2))
    Profiler(_limits(), page_tokens=16).measure(measured)
    outputs = []
    for stage in (plain, measured):
        stage.allocate(num_pages=8, page_tokens=16)
        hidden_TD = torch.empty(20, stage.description.hidden_size)
        microbatch = Microbatch(
            epoch=1,
            seq_no=0,
            entries=(Entry(row=0, start=0, num_tokens=20, new_page_ids=(3, 4)),),
            token_ids=np.arange(20, dtype=np.uint32) + 70,
            sampling=(),
        )
        assert StageOutput() == stage.forward(microbatch, None, hidden_TD)
        outputs.append(hidden_TD)
    assert torch.equal(*outputs)


def test_work_of_what_is_run() -> None:
    """The double tells chunks from decode rows as the model of latency does."""
    entries = (
        Entry(row=0, start=5, num_tokens=1, new_page_ids=(0,)),
        Entry(row=1, start=10, num_tokens=4, new_page_ids=(1,)),
    )
    microbatch = Microbatch(epoch=0, seq_no=0, entries=entries, token_ids=None, sampling=())
    assert Work.of_rows([6]) + Work.of_chunk(10, 14) == work_of(microbatch)
