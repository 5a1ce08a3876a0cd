"""A HiCache in this process over a real Redis, and hicache-admin to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from hicache.admin import consent
from tests.hicache_admin import (
    LONG_PAGES,
    SHORT_PAGES,
    Admin,
    Ended,
    Logs,
    admin,
    byte_tokenizer,
    hicache_over,
    store_pages,
)
from tests.valkey import Valkey

NEED_SCHEDULER = {"pin", "unpin", "evict", "verify", "export", "lookup", "set", "unset"}


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    """Keep the servers' log lines, which would else stand among what commands print."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture
async def hicache(valkey: Valkey) -> AsyncIterator[str]:
    """Run a HiCache that holds both prompts."""
    async with hicache_over(valkey) as address:
        await store_pages(valkey, address, LONG_PAGES)
        await store_pages(valkey, address, SHORT_PAGES)
        yield address


@pytest.fixture
async def run(hicache: str) -> AsyncIterator[Admin]:
    """Run commands against that HiCache and a scheduler that can tokenize."""
    async with byte_tokenizer() as scheduler:

        async def run_command(*arguments: str, answer: str = "") -> Ended:
            words = list(arguments)
            if NEED_SCHEDULER & set(words[:2]):
                words += ["--scheduler", scheduler]
            return await admin("--hicache", hicache, *words, answer=answer)

        yield run_command


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands believe that somebody can answer."""
    monkeypatch.setattr(consent, "has_terminal", lambda: True)
