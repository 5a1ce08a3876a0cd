"""Every decoder of bytes from outside, on bytes that are nearly right."""

from __future__ import annotations

import pytest

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.exploration import explore
from tests.fuzz.target import Target


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_hostile_bytes(target: Target) -> None:
    """Nothing but the decoder's own refusal, and no wrong result taken for a right one."""
    explore(target.values, target.check, examples=target.examples)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_valid_bytes(target: Target) -> None:
    """A check that refused everything would find nothing."""
    assert [True] * len(target.seeds) == list(map(target.check, target.seeds))
