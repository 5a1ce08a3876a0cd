"""A worker leaves a scheduler that says nothing, and none that is only slow."""

from __future__ import annotations

import asyncio

import pytest

from stage_worker import silence
from stage_worker.silence import Silence, Silent


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks follow each other at once; as many of them make up the limits."""
    monkeypatch.setattr(silence, "_FIRST_S", 3.0)
    monkeypatch.setattr(silence, "_LATER_S", 5.0)
    monkeypatch.setattr(silence, "_LOOK_S", 0.001)
    for name in ("_FIRST_S", "_LATER_S"):
        monkeypatch.setattr(silence, name, getattr(silence, name) / 1000)


async def test_silence_cuts_off_what_is_inside(quick: None) -> None:
    """Also before the first answer: a stopped process takes connections and says nothing."""
    with pytest.raises(Silent, match="said nothing"):
        async with Silence().bounded():
            await asyncio.sleep(60)


async def test_answers_keep_it_away(quick: None) -> None:
    """However many there have been."""
    kept = Silence()
    async with kept.bounded():
        for _ in range(50):
            kept.broken()
            await asyncio.sleep(0.001)


async def test_other_errors_pass(quick: None) -> None:
    """A time limit inside is somebody else's."""
    with pytest.raises(TimeoutError, match="mine"):
        async with Silence().bounded():
            raise TimeoutError("mine")
