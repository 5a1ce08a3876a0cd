"""StoredChecks: when HiCache is asked about pages that nobody reads from there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from scheduler import stored_checks
from scheduler.actions import CheckStored
from scheduler.events import Checked
from scheduler.stored_checks import FAILING_PAUSE_S, MAX_OPEN, PAUSE_S, StoredChecks
from tests.page_samples import chain

PROMPT = chain(3)


class PlayedStores:
    """Believes what it is told to, and notes what is to be stored again."""

    def __init__(self) -> None:
        self.is_flushing = self.is_failing = False
        self.in_work: set[bytes] = set()
        self.restored: list[bytes] = []

    def believed(self, digests: Iterable[bytes]) -> list[bytes]:
        """Return all that is not in work."""
        return [each for each in digests if each not in self.in_work]

    def restore(self, digests: Iterable[bytes]) -> None:
        """Note pages."""
        self.restored += digests


@pytest.fixture
def stores() -> PlayedStores:
    """Return stores without work."""
    return PlayedStores()


@pytest.fixture
def checks(stores: PlayedStores) -> StoredChecks:
    """Return checks over them."""
    played: Any = stores
    return StoredChecks(played)


def answer(checks: StoredChecks, num_pages: int | None, digests: tuple[bytes, ...]) -> None:
    """Let HiCache answer."""
    checks.answered(Checked(last_digest=digests[-1], num_pages=num_pages))


def test_what_is_lacking_is_stored_again(checks: StoredChecks, stores: PlayedStores) -> None:
    """Behind what HiCache has, but for what was in work when it was asked, or is by now."""
    digests = chain(5)
    stores.in_work = {digests[2]}
    assert checks.ask(digests, 0) == [CheckStored(digests=digests)]
    stores.in_work = {digests[3]}
    answer(checks, 1, digests)
    assert stores.restored == [digests[1], digests[4]]
    answer(checks, 0, digests)
    assert stores.restored == [digests[1], digests[4]]


def test_no_answer_is_none(checks: StoredChecks, stores: PlayedStores) -> None:
    """A HiCache that is away has not lost anything."""
    checks.ask(PROMPT, 0)
    answer(checks, None, PROMPT)
    assert stores.restored == []
    assert checks.ask(PROMPT, PAUSE_S) != []


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_prompt_is_asked_for_now_and_then(
    checks: StoredChecks, stores: PlayedStores, *, is_failing: bool
) -> None:
    """Seldom while stores fail: asking would not help."""
    pause_s = FAILING_PAUSE_S if is_failing else PAUSE_S
    stores.is_failing = is_failing
    assert checks.ask(PROMPT, 1) != []
    assert checks.ask(PROMPT, 1 + 10 * pause_s) == []
    answer(checks, 3, PROMPT)
    assert checks.ask(PROMPT, 1 + pause_s - 0.1) == []
    assert checks.ask(PROMPT, 1 + pause_s) != []


def test_few_are_asked_for_at_a_time(checks: StoredChecks) -> None:
    """A burst of prompts must not become a burst of questions."""
    prompts = [chain(1, name=str(number)) for number in range(MAX_OPEN + 1)]
    assert [len(checks.ask(prompt, 0)) for prompt in prompts] == [1] * MAX_OPEN + [0]
    answer(checks, 1, prompts[0])
    assert checks.ask(prompts[-1], 0) != []


def test_what_could_change_nothing_is_not_asked(checks: StoredChecks, stores: PlayedStores) -> None:
    """Nothing to ask for, all in work, or the stores have enough to do."""
    assert checks.ask((), 0) == []
    stores.in_work = set(PROMPT)
    assert checks.ask(PROMPT, 0) == []
    stores.in_work, stores.is_flushing = set(), True
    assert checks.ask(PROMPT, 0) == []
    stores.is_flushing = False
    assert checks.ask(PROMPT, 0) != []


def test_the_prompts_asked_for_last_are_remembered(
    checks: StoredChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded; one that is asked for again is young again."""
    monkeypatch.setattr(stored_checks, "_MAX_PROMPTS", 2)
    one, two, three = (chain(1, name=name) for name in "abc")
    for now_s, prompt in ((0.0, one), (0.1, two), (PAUSE_S, one), (PAUSE_S, three)):
        assert checks.ask(prompt, now_s) != []
        answer(checks, 1, prompt)
    asked = [bool(checks.ask(prompt, PAUSE_S + 0.05)) for prompt in (one, three, two)]
    assert asked == [False, False, True]
