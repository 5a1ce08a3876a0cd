"""stage_worker.lost_scheduler: how often a worker complains."""

from __future__ import annotations

from structlog.testing import capture_logs

from stage_worker.lost_scheduler import LostScheduler


def test_a_scheduler_that_stays_away_is_logged_once_a_minute() -> None:
    """A worker tries twice a second and more; an hour alone must not fill a log."""
    now_s = 1000.0
    lost = LostScheduler(lambda: now_s)
    with capture_logs() as logs:
        for _ in range(1200):
            lost.lost("a:1", "refused")
            lost.lost("b:1", "refused")
            now_s += 0.1
    assert [line["scheduler"] for line in logs] == ["a:1", "b:1", "a:1", "b:1"]
    assert lost.reason == "no scheduler answers at b:1"


def test_a_loss_after_a_connection_is_news() -> None:
    """However short ago the last one was."""
    lost = LostScheduler(lambda: 0.0)
    assert lost.reason == ""
    with capture_logs() as logs:
        lost.lost("a:1", "refused")
        lost.connected()
        assert lost.reason == ""
        lost.lost("a:1", "gone")
    assert [line["reason"] for line in logs] == ["refused", "gone"]
