"""chunkmesh.known_architectures: what the command line knows of stage workers."""

from __future__ import annotations

from chunkmesh.known_architectures import ARCHITECTURE_NAMES
from stage_worker.architectures import ARCHITECTURES


def test_the_names_are_those_of_stage_workers() -> None:
    """A family that is added there must not be refused by `chunkmesh up`."""
    assert ARCHITECTURE_NAMES == tuple(ARCHITECTURES)
