"""Each second of a stage is told once, as busy or by what it waited for."""

from __future__ import annotations

import pytest

from stage_worker.stage_time import StageTime


def idle(bubble: float = 0.0, starved: float = 0.0, blocked: float = 0.0) -> dict[str, float]:
    """Return seconds by cause."""
    return {"bubble": bubble, "starved": starved, "blocked": blocked}


def test_a_stage_that_computes_at_once() -> None:
    """The four phases of a microbatch on a CPU stand beside each other without a gap."""
    time = StageTime(0.0)
    time.begin("work", 1.0)
    time.begin("bubble", 1.5)
    time.begin("blocked", 3.5)
    time.begin("work", 4.0)
    time.launched()
    time.ended(4.0, 9.0)
    time.begin("starved", 10.0)
    spent = time.take(12.0)
    assert spent.busy_s == pytest.approx(0.5 + 5.0 + 1.0)
    assert spent.idle_s == pytest.approx(idle(bubble=2.0, starved=3.0, blocked=0.5))


def test_waiting_is_told_while_it_lasts() -> None:
    """A stage that hangs for minutes must not look busy until the next microbatch."""
    time = StageTime(0.0)
    time.begin("bubble", 1.0)
    assert time.take(5.0).idle_s == idle(bubble=4.0, starved=1.0)
    assert time.take(6.0).idle_s == idle(bubble=1.0)


def test_a_device_is_busy_whatever_its_thread_waits_for() -> None:
    """The thread asks for the next input while the device computes: that is no bubble yet."""
    time = StageTime(0.0)
    time.begin("work", 0.0)
    time.launched()
    time.begin("bubble", 1.0)
    assert time.take(5.0).idle_s == idle()
    time.ended(0.5, 6.0)
    spent = time.take(7.0)
    assert spent.busy_s == 6.0
    assert spent.idle_s == idle(bubble=1.0)


def test_phases_behind_a_busy_device_are_forgotten() -> None:
    """A device that is never idle runs for months."""
    time = StageTime(0.0)
    for second in range(100):
        time.begin("work", second)
        time.launched()
        time.begin("starved", second + 0.5)
        if second:
            time.ended(second - 1, second)
    assert len(time._phases) < 10
    assert time.take(100.0).busy_s == 99.0
