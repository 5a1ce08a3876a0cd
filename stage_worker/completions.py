"""Tells the ends of a stage's microbatches, in the order in which they were launched.

A thread of its own waits for the device, so that the compute thread can launch the next microbatch
meanwhile. What was computed when its launch returned is told by the compute thread itself.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

from chunkmesh import left_threads
from chunkmesh.logprobs_codec import to_message
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker import metrics
from stage_worker.host_copies import Restored
from stage_worker.launched import Computed, Finished, Launched
from stage_worker.stage_use import StageUse

MOST_LAUNCHED = 2
"""Microbatches on the device: one that it works on, one behind it."""
_STOP_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A microbatch that was launched."""

    epoch: int
    seq_no: int
    asked_s: float
    """When the compute thread was free for it, on the monotonic clock."""
    launched: Launched
    send_us: Callable[[], int]
    """Tells how long the last finished send took."""
    restored: tuple[Restored, ...] = ()
    """What was copied from host memory since the microbatch before."""


class Completions:
    """Owner of the thread that waits; the other methods are the compute thread's."""

    def __init__(
        self,
        acked: Callable[[pb.Ack], None],
        crashed: Callable[[BaseException], None],
        use: StageUse | None = None,
    ) -> None:
        """Prepare; start() begins. acked and crashed are called on either thread.

        use hears when the device was busy.
        """
        self._use = use or StageUse()
        self._acked = acked
        self._crashed = crashed
        self._ended_s = 0.0
        """When the microbatch that was told last had ended."""
        self._changed = threading.Condition()
        self._waiting: collections.deque[Begun] = collections.deque()
        """Launched and not yet told."""
        self._stopped = False
        """Nothing more will be told: after stop, or a crash."""
        self._thread = threading.Thread(target=self._run, name="completions", daemon=True)

    def start(self) -> None:
        """Begin to wait for what add is given."""
        self._thread.start()

    def make_room(self) -> None:
        """Block while as many microbatches as may be launched are."""
        self._wait_until(lambda: len(self._waiting) < MOST_LAUNCHED)

    def add(self, begun: Begun) -> None:
        """Take a microbatch whose end is to be told."""
        self._use.launched()
        if isinstance(begun.launched, Computed) and not self._waiting:
            self._tell(begun, begun.launched.wait())
            return
        with self._changed:
            self._waiting.append(begun)
            self._changed.notify_all()

    def drain(self) -> None:
        """Block until all ends are told."""
        self._wait_until(lambda: not self._waiting)

    def stop(self) -> None:
        """Tell what is under way, then end the thread; blocks for a while at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._stopped, _STOP_S)
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(_STOP_S)
        left_threads.leave(self._thread)

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: reached() or self._stopped)

    def _run(self) -> None:
        try:
            while (begun := self._first()) is not None:
                self._tell(begun, begun.launched.wait())
                with self._changed:
                    self._waiting.popleft()
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: handed on, not kept
            self._crashed(error)
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()

    def _first(self) -> Begun | None:
        """Return the oldest microbatch that is not told, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            return None if self._stopped else self._waiting[0]

    def _tell(self, begun: Begun, finished: Finished) -> None:
        """Acknowledge a microbatch.

        The stage waited for its input from when it was both asked for and done with the one before.
        """
        idle_s = max(begun.asked_s, self._ended_s)
        self._ended_s = finished.ended_s
        self._use.ended(finished.started_s, finished.ended_s)
        restored_bytes = sum(each.num_bytes for each in begun.restored)
        restore_s = sum(each.took_s() for each in begun.restored)
        metrics.count_restored(restored_bytes, restore_s)
        output = finished.output
        self._acked(
            pb.Ack(
                epoch=begun.epoch,
                seq_no=begun.seq_no,
                started_us=int(finished.started_s * 1e6),
                acked_us=int(time.monotonic() * 1e6),
                wait_us=int(max(finished.started_s - idle_s, 0) * 1e6),
                compute_us=int((finished.ended_s - finished.started_s) * 1e6),
                send_us=begun.send_us(),
                sampled_ids=output.sampled_ids,
                sampled_logprobs=map(to_message, output.sampled_logprobs),
                prompt_logprobs=map(to_message, output.prompt_logprobs),
                without_choice=output.without_choice,
                restored_bytes=restored_bytes,
                restore_us=int(1e6 * restore_s),
            )
        )
