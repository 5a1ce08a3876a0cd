"""What tests of replicas start from."""

from __future__ import annotations

import pytest

from hicache import rebuild


@pytest.fixture(autouse=True)
def _no_rescan_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be found by a scan that an event should have told."""
    monkeypatch.setattr(rebuild, "SETTLE_S", 3600.0)
