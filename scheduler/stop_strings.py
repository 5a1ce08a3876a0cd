"""Finds stop strings in text that arrives in pieces. Pure.

Which stop string wins depends on the text alone, not on how it was cut into pieces: the one that
begins first; of several that begin at the same place the shortest, because it is complete first.
So a match is decided as soon as nothing that began earlier can still become a stop string.

Source: Aho and Corasick, Efficient string matching (https://doi.org/10.1145/360825.360855).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _State:
    """A prefix of at least one stop string."""

    depth: int
    """Length of the prefix."""
    next: dict[str, _State]
    fail: _State | None = None
    """The longest proper suffix of the prefix that is a prefix too; None for the root."""
    longest_stop: str | None = None
    """The longest stop string that the prefix ends with."""


class StopMatcher:
    """Searches one output for its stop strings; time is linear in the length of the text."""

    def __init__(self, stops: Sequence[str], *, prepared: _State | None = None) -> None:
        """Prepare for stop strings, each non-empty; with none, all text passes at once."""
        self.matched_stop: str | None = None
        """The stop string that has matched; the text before it has then been returned."""
        self._root = _build(stops) if prepared is None else prepared
        self._state = self._root
        self._held = ""
        self._candidate: tuple[int, str] | None = None
        """Where in _held the best complete stop string begins, and which it is."""

    def fresh(self) -> StopMatcher:
        """Return a matcher of the same stop strings for another text.

        What they were prepared into is shared: thousands of states for long ones.
        """
        return StopMatcher((), prepared=self._root)

    def push(self, text: str) -> str:
        """Take new text; return what can no longer become part of a stop string.

        Once a stop string has matched, everything after its beginning is dropped.
        """
        if not self._root.next:
            return text
        if self.matched_stop is not None:
            return ""
        position = len(self._held)
        self._held += text
        for char in text:
            position += 1
            self._step(char, position)
            if self._candidate and position - self._state.depth >= self._candidate[0]:
                return self._decide(*self._candidate)
        return self._release(position - self._state.depth)

    def flush(self) -> str:
        """Return what was held back, at the end of the text; a complete stop string counts."""
        return self._decide(*self._candidate) if self._candidate else self._release(len(self._held))

    def _step(self, char: str, position: int) -> None:
        """Advance by one character, which ends at position in _held."""
        state: _State | None = self._state
        while state is not None and char not in state.next:
            state = state.fail
        self._state = self._root if state is None else state.next[char]
        stop = self._state.longest_stop
        if stop is None:
            return
        begin = position - len(stop)
        if self._candidate is None or begin < self._candidate[0]:
            self._candidate = (begin, stop)

    def _decide(self, begin: int, stop: str) -> str:
        """Make the candidate the match; return the text before it."""
        self.matched_stop = stop
        self._candidate = None
        text, self._held = self._held[:begin], ""
        return text

    def _release(self, end: int) -> str:
        """Return the first part of _held, but nothing of the candidate."""
        if self._candidate is not None:
            begin, stop = self._candidate
            end = min(end, begin)
            self._candidate = (begin - end, stop)
        text, self._held = self._held[:end], self._held[end:]
        return text


def _build(stops: Sequence[str]) -> _State:
    """Build the automaton and return its root."""
    root = _State(depth=0, next={})
    for stop in stops:
        state = root
        for char in stop:
            state = state.next.setdefault(char, _State(depth=state.depth + 1, next={}))
        state.longest_stop = stop
    queue = deque([root])
    while queue:
        state = queue.popleft()
        for char, child in state.next.items():
            child.fail = _fail_of(state, char, root)
            child.longest_stop = child.longest_stop or child.fail.longest_stop
            queue.append(child)
    return root


def _fail_of(parent: _State, char: str, root: _State) -> _State:
    """Return the fail state of parent's child; those of all shorter prefixes are known."""
    state = parent.fail
    while state is not None and char not in state.next:
        state = state.fail
    return root if state is None else state.next[char]
