"""When a stage is given up, and when it must not be."""

from __future__ import annotations

import pytest

from scheduler.events import Acked, RouteFormed
from scheduler.latency_model import Work
from scheduler.stage_deadlines import CPU_FLOOR_S, GPU_FLOOR_S, StageDeadlines

_WORK = Work.of_chunk(0, 256)
_SECOND = (1000.0, 1000.0, 1000.0)


class _Stages:
    """Three stages and their deadlines; each microbatch of one shape is expected to take 1 s."""

    def __init__(
        self,
        *,
        predicted_ms: tuple[float, ...] = _SECOND,
        floor_s: float | None = None,
        is_on_gpus: bool = False,
        page_bytes: int = 0,
        is_warm: bool = True,
    ) -> None:
        formed = RouteFormed(
            epoch=1,
            num_stages=3,
            num_pages=8,
            is_on_gpus=is_on_gpus,
            page_bytes=(page_bytes,) * 3 if page_bytes else (),
        )
        self.deadlines = StageDeadlines(formed, floor_s)
        self._predicted_ms = predicted_ms
        self._num_sent = 0
        self._num_acked = [0, 0, 0]
        if is_warm:
            self.send(0.0)
            for stage in range(3):
                self.ack(stage, 0.0)

    def send(self, now_s: float, work: Work = _WORK) -> None:
        """Send a microbatch."""
        self.deadlines.sent(self._num_sent, work, self._predicted_ms, now_s)
        self._num_sent += 1

    def ack(self, stage: int, now_s: float, compute_ms: float = 1000.0) -> None:
        """Let a stage acknowledge its next microbatch."""
        seq_no, self._num_acked[stage] = self._num_acked[stage], self._num_acked[stage] + 1
        acked = Acked(epoch=1, stage=stage, seq_no=seq_no, compute_ms=compute_ms)
        self.deadlines.acked(acked, now_s)

    def late(self, now_s: float) -> int | None:
        """Return which stage is given up, if any is."""
        overdue = self.deadlines.overdue(now_s)
        return None if overdue is None else overdue.stage


def test_four_times_the_prediction() -> None:
    """A hang is noticed soon; the reason tells a person what was waited for."""
    stages = _Stages()
    stages.send(10.0)
    assert stages.late(13.9) is None
    overdue = stages.deadlines.overdue(14.1)
    assert overdue is not None
    assert overdue.stage == 0
    assert "stage 0 has not acknowledged microbatch 1 after 4.10 s" in overdue.reason
    assert "4 times the predicted 1.000 s" in overdue.reason


def test_it_is_told_once() -> None:
    """The shell gives the worker up; until that is heard nothing more is to be said."""
    stages = _Stages()
    stages.send(0.0)
    assert stages.late(9.0) == 0
    assert stages.late(9.1) is None
    assert stages.deadlines.is_over


def test_each_stage_waits_for_the_one_before() -> None:
    """Only who has the microbatch can be late with it."""
    stages = _Stages()
    stages.send(0.0)
    stages.ack(0, 3.0)
    assert stages.late(6.9) is None
    stages.ack(1, 6.9)
    assert stages.late(10.8) is None
    assert stages.late(11.0) == 2


def test_a_queue_is_no_lateness() -> None:
    """The time for a microbatch begins with the acknowledgement of the one before."""
    stages = _Stages()
    for _ in range(3):
        stages.send(0.0)
    for now_s in (3.0, 6.0):
        stages.ack(0, now_s)
        stages.ack(1, now_s)
        stages.ack(2, now_s)
        assert stages.late(now_s + 3.9) is None
    assert stages.late(10.1) == 0


def test_the_stage_that_hangs_is_blamed_not_the_one_before_it() -> None:
    """Stage 0 waits for a slot of stage 1, which computes a shape for the first time."""
    stages = _Stages(is_warm=False)
    for _ in range(2):
        stages.send(0.0)
    stages.ack(0, 1.0)
    assert stages.late(40.0) is None
    assert stages.late(41.1) == 1


def test_the_last_may_be_heard_before_the_first() -> None:
    """Streams are independent; a late word of stage 0 is no fault of stage 1 or 2."""
    stages = _Stages()
    stages.send(0.0)
    stages.ack(2, 1.0)
    stages.ack(1, 1.0)
    assert stages.late(3.9) is None
    stages.ack(0, 3.9)
    stages.send(4.0)
    assert stages.late(7.9) is None
    assert stages.late(8.1) == 0


@pytest.mark.parametrize(
    ("is_on_gpus", "floor_s", "expected_s"),
    [(False, None, CPU_FLOOR_S), (True, None, GPU_FLOOR_S), (True, 3.0, 3.0)],
)
def test_no_stage_has_less_than_the_floor(
    *, is_on_gpus: bool, floor_s: float | None, expected_s: float
) -> None:
    """A microbatch of a millisecond may be late by a pause of the machine, more so without GPUs."""
    stages = _Stages(predicted_ms=(1.0, 1.0, 1.0), is_on_gpus=is_on_gpus, floor_s=floor_s)
    stages.send(0.0)
    # What came before has taught that a millisecond takes a second here.
    stages.deadlines._slowness = [1.0] * 3
    assert stages.late(expected_s - 0.01) is None
    assert stages.late(expected_s + 0.01) == 0


def test_zero_is_off() -> None:
    """Who debugs a stage stops it for minutes."""
    stages = _Stages(floor_s=0.0)
    stages.send(0.0)
    assert stages.late(1e6) is None


def test_a_new_shape_has_ten_times_the_time() -> None:
    """Kernels may be compiled for it; only once, and on each stage."""
    stages = _Stages()
    long = Work.of_chunk(0, 4096)
    stages.send(0.0, long)
    assert stages.late(39.9) is None
    stages.ack(0, 39.9)
    assert stages.late(79.0) is None
    stages.ack(1, 79.0)
    stages.ack(2, 79.0)
    stages.send(100.0, long)
    assert stages.late(104.1) == 0


def test_without_a_prediction_it_is_ten_times_the_floor() -> None:
    """Nothing says how long a chunk takes."""
    stages = _Stages(predicted_ms=())
    stages.send(0.0)
    assert stages.late(10 * CPU_FLOOR_S - 0.1) is None
    assert stages.late(10 * CPU_FLOOR_S + 0.1) == 0


def test_a_slow_machine_is_no_fault() -> None:
    """Two busy cores: each microbatch takes three times what was measured on idle ones."""
    stages = _Stages()
    now_s = 0.0
    for _ in range(20):
        stages.send(now_s)
        for stage in range(3):
            now_s += 3.0
            assert stages.late(now_s) is None
            stages.ack(stage, now_s, compute_ms=3000.0)
    stages.send(now_s)
    assert stages.late(now_s + 11.9) is None
    assert stages.late(now_s + 12.1) == 0


def test_pages_that_are_copied_count() -> None:
    """A long hit is copied into the pool in the stream, before the microbatch behind it."""
    stages = _Stages(page_bytes=10_000_000)
    stages.deadlines.copied(100)
    stages.send(0.0)
    assert stages.late(13.9) is None
    assert stages.late(14.1) == 0


def test_the_schedulers_own_standstill_is_nobodys_lateness() -> None:
    """What the stages said meanwhile is still unread."""
    stages = _Stages()
    stages.send(0.0)
    stages.deadlines.stood_still(60.0)
    assert stages.late(63.9) is None
    assert stages.late(64.1) == 0


def test_pages_that_are_copied_count_once() -> None:
    """Else each long hit would let a stage hang for longer, for good."""
    stages = _Stages(page_bytes=10_000_000)
    stages.deadlines.copied(100)
    stages.send(0.0)
    for stage in range(3):
        stages.ack(stage, 1.0)
    stages.send(10.0)
    assert stages.late(13.9) is None
    assert stages.late(14.1) == 0


@pytest.mark.parametrize("num_acked", [0, 1, 2])
def test_after_a_standstill_a_hang_is_noticed_as_soon_as_before_it(num_acked: int) -> None:
    """A scheduler that once stood still for a minute must not give each stage that minute."""
    stages = _Stages()
    stages.deadlines.stood_still(60.0)
    stages.send(100.0)
    for stage in range(num_acked):
        stages.ack(stage, 100.0 + stage)
    last_s = 100.0 + max(num_acked - 1, 0)
    assert stages.late(last_s + 3.9) is None
    assert stages.late(last_s + 4.1) == num_acked
