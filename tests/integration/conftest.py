"""What most of these tests run over: a tiny model, its reference, and a Valkey server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import hicache_client
from tests.bytes_tokenizer import write_bytes_folder
from tests.forked_services import Services
from tests.reference import Reference
from tests.tiny_models import make_tiny_llama
from tests.valkey import Valkey, running_valkey


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny Llama of four layers with the BYTES tokenizer; nobody may change it."""
    folder = tmp_path_factory.mktemp("tiny")
    write_bytes_folder(folder)
    make_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def reference(tiny: Path) -> Reference:
    """Load the tiny Llama in transformers."""
    return Reference(tiny)


@pytest.fixture
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Run an empty Valkey server of the test's own, whose socket has a short path."""
    with running_valkey(tmp_path_factory.mktemp("v")) as server:
        yield server


@pytest.fixture
def services(tmp_path_factory: pytest.TempPathFactory) -> Services:
    """Return who starts the test's services."""
    return Services(tmp_path_factory.mktemp("services"))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let schedulers wait for a HiCache that has the processor last; hits are counted exactly."""
    monkeypatch.setattr(hicache_client, "_DEADLINE_S", 10.0)
