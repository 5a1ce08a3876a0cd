"""What all tests start from."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

# Two threads that compute wait for each other at every operation: where something else has one of
# their processors, a tiny model takes fifty times as long. Whoever wants more threads says so.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A shell starts background jobs with SIGINT ignored, and their children inherit that: commands that
# tests interrupt would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _profile_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what workers of tests measure out of the user's cache; the run's own starts share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHUNKMESH_PROFILE_DIR", str(tmp_path_factory.mktemp("profiles")))
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out, where several processes run them."""
    from tests.shares import Shares  # noqa: PLC0415 - machines that run them in one have no xdist

    return Shares(config, log)
