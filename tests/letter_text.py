"""A text sink for tests: an id is the letter of that code; text that may become a stop waits."""

from __future__ import annotations


class LetterText:
    """Turns ids into letters and stops at the first of its stop strings."""

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        """Look for stops, each at least one letter."""
        self.matched_stop: str | None = None
        self.pushed: list[int] = []
        self._stops = stops
        self._held = ""

    def push(self, token_id: int) -> str:
        """Take one id; return all text that cannot be the start of a stop."""
        self.pushed.append(token_id)
        self._held += chr(token_id)
        for stop in self._stops:
            if stop in self._held:
                self.matched_stop = stop
                text, self._held = self._held[: self._held.index(stop)], ""
                return text
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def flush(self) -> str:
        """Return what was held back."""
        text, self._held = self._held, ""
        return text

    def _overlap(self, stop: str) -> int:
        """Return how many of the last letters are the start of stop."""
        most = min(len(stop) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(stop[:n])), 0)
