"""A Valkey server for each test."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.valkey import Valkey, running_valkey


@pytest.fixture
def valkey(tmp_path: pathlib.Path) -> Iterator[Valkey]:
    """Run an empty server."""
    with running_valkey(tmp_path) as server:
        yield server
