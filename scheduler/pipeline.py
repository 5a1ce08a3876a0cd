"""The in-flight window of one epoch: what was sent and which stage has acknowledged what. Pure.

Each stage works first in, first out, so its acknowledgements come in the order of seq_no. One of
a seq_no acknowledged before is a duplicate and harmless. One that skips a seq_no or was never
sent is a bug. The streams of different stages are independent: the last stage may be heard before
the first.
"""

from __future__ import annotations

from collections import deque

from chunkmesh.errors import InvariantViolated
from scheduler.events import Acked
from scheduler.part import Part

STAGE_0_CREDITS = 2
"""Microbatches that stage 0 may have: one computes, one waits."""


class Pipeline:
    """Counts microbatches through the stages of a route."""

    def __init__(self, *, num_stages: int, window: int) -> None:
        """Begin an epoch; at most window >= 1 microbatches are inside the pipeline."""
        self._window = window
        self._num_sent = 0
        """The next seq_no."""
        self._num_acked = [0] * num_stages
        """Of each stage, num_complete <= n <= num_sent: it has acknowledged seq_no 0 to n - 1."""
        self._in_flight: deque[tuple[Part, ...]] = deque()
        """Not complete, ascending; the first has seq_no num_complete."""
        self._num_complete = 0
        """Leading microbatches that all stages have acknowledged."""

    @property
    def last_stage(self) -> int:
        """The stage that samples."""
        return len(self._num_acked) - 1

    @property
    def num_in_flight(self) -> int:
        """Microbatches that some stage has not acknowledged."""
        return len(self._in_flight)

    def has_room(self) -> bool:
        """Whether window and stage 0 allow one more microbatch."""
        in_window = self._num_sent - self._num_acked[-1] < self._window
        return in_window and self._num_sent - self._num_acked[0] < STAGE_0_CREDITS

    def send(self, parts: tuple[Part, ...]) -> int:
        """Count a microbatch as sent; return its seq_no.

        Raises:
            InvariantViolated: there is no room.
        """
        if not self.has_room():
            raise InvariantViolated(f"no room for microbatch {self._num_sent}")
        self._in_flight.append(parts)
        self._num_sent += 1
        return self._num_sent - 1

    def ack(self, acked: Acked) -> tuple[Part, ...] | None:
        """Take an acknowledgement; return the microbatch, or None for a duplicate.

        Raises:
            InvariantViolated: it skips a seq_no, was never sent, or has not exactly the results
                that were asked for from the last stage and none from others; nothing has changed
                then.
        """
        stage, seq_no = acked.stage, acked.seq_no
        num_acked = self._num_acked[stage]
        if seq_no < num_acked:
            return None
        if seq_no != num_acked or seq_no >= self._num_sent:
            raise InvariantViolated(
                f"stage {stage} acknowledged {seq_no}, expected {num_acked} < {self._num_sent}"
            )
        parts = self._in_flight[seq_no - self._num_complete]
        _check_results(acked, parts if stage == self.last_stage else ())
        self._num_acked[stage] += 1
        return parts

    def take_complete(self) -> list[tuple[Part, ...]]:
        """Return, once, the microbatches that the last acknowledgement completed, in order."""
        complete = []
        while self._num_complete < min(self._num_acked):
            complete.append(self._in_flight.popleft())
            self._num_complete += 1
        return complete


def _check_results(acked: Acked, parts: tuple[Part, ...]) -> None:
    """Compare what a stage tells with what parts asked for.

    Raises:
        InvariantViolated: there is more or less of something.
    """
    where = f"in {acked.seq_no}, expected"
    num_samples = sum([part.num_samples for part in parts])
    if len(acked.sampled_ids) != num_samples:
        raise InvariantViolated(
            f"stage {acked.stage} sampled {len(acked.sampled_ids)} ids {where} {num_samples}"
        )
    if any(not 0 <= index < num_samples for index in acked.without_choice):
        raise InvariantViolated(
            f"stage {acked.stage} names samples {acked.without_choice} {where} {num_samples}"
        )
    told = [len(logprobs) for logprobs in acked.sampled_logprobs]
    wanted = [1] * sum([part.num_sampled_logprobs for part in parts])
    if told != wanted:
        raise InvariantViolated(
            f"stage {acked.stage} told log-probabilities of {told} sampled ids {where} {wanted}"
        )
    told = [len(logprobs) for logprobs in acked.prompt_logprobs]
    wanted = [part.num_targets for part in parts if part.num_targets]
    if told != wanted:
        raise InvariantViolated(
            f"stage {acked.stage} told log-probabilities of {told} prompt tokens {where} {wanted}"
        )
