"""The text of one request's output: detokenised, and cut at its stop strings. No I/O."""

from __future__ import annotations

from scheduler.detokenizer import Detokenizer
from scheduler.stop_strings import StopMatcher


class OutputText:
    """A TextSink. The prompt never enters it, so it is not searched for stop strings."""

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher) -> None:
        """Own a fresh detokenizer and matcher."""
        self.matched_stop: str | None = None
        """The stop string that has matched, if one has; flush may still find one."""
        self._detokenizer = detokenizer
        self._stops = stops

    def push(self, token_id: int) -> str:
        """Take the next output id; return the text that may be sent now, for good."""
        text = self._stops.push(self._detokenizer.push(token_id))
        self.matched_stop = self._stops.matched_stop
        return text

    def flush(self) -> str:
        """Return what was held back, at the end of the output."""
        text = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        self.matched_stop = self._stops.matched_stop
        return text
