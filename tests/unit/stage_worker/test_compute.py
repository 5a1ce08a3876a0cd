"""The compute thread launches ahead of the device, and tells every end in order and once."""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.completions import MOST_LAUNCHED
from stage_worker.compute import BeginEpoch, Compute, CopyPages, ForgetRow, Listener, Order
from stage_worker.host_pages import HostPages
from stage_worker.orders import Entry, Microbatch, SamplingRow
from stage_worker.page_io import PageIO
from stage_worker.stage import Stage
from tests.launched_stage import WAIT_S, HeldStage
from tests.scripted_stage import Script, ScriptedStage


def microbatch(seq_no: int, *, epoch: int = 1, seed: int | None = None) -> Microbatch:
    """Return one token of a row, sampled if it has a seed."""
    sampling = SamplingRow(
        entry=0,
        row=0,
        seed=seed or 0,
        child=0,
        position=0,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
    )
    return Microbatch(
        epoch=epoch,
        seq_no=seq_no,
        entries=(Entry(row=0, start=seq_no, num_tokens=1, new_page_ids=() if seq_no else (0,)),),
        token_ids=np.ones(1, dtype=np.uint32),
        sampling=() if seed is None else (sampling,),
    )


@dataclasses.dataclass(slots=True)
class Thread:
    """A compute thread and what it tells."""

    compute: Compute
    acks: queue.SimpleQueue[pb.Ack]
    crashes: queue.SimpleQueue[BaseException]

    def put(self, *orders: Order) -> None:
        """Give orders."""
        for order in orders:
            self.compute.put(order)

    def ack(self) -> pb.Ack:
        """Return the next acknowledgement."""
        return self.acks.get(timeout=WAIT_S)


def begin_epoch(
    epoch: int = 1, begun: queue.SimpleQueue[None] | None = None, num_pages: int = 4
) -> BeginEpoch:
    """Return the order that begins an epoch."""
    done = (begun or queue.SimpleQueue[None]()).put
    return BeginEpoch(epoch=epoch, num_pages=num_pages, page_tokens=16, done=lambda: done(None))


def start(stage: Stage) -> Thread:
    """Start a compute thread without page I/O."""
    acks: queue.SimpleQueue[pb.Ack] = queue.SimpleQueue()
    crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    listener = Listener(acked=acks.put, fault=lambda *_: None, crashed=crashes.put)
    thread = Thread(
        Compute(stage, cast("PageIO", SimpleNamespace(host=HostPages(0))), listener), acks, crashes
    )
    thread.compute.start()
    return thread


@pytest.fixture
def stage() -> HeldStage:
    """Return a stage that launches."""
    return HeldStage()


@pytest.fixture
def thread(stage: HeldStage) -> Iterator[Thread]:
    """Run a compute thread in an epoch; whatever is launched ends at last."""
    started = start(stage)
    started.put(begin_epoch())
    yield started
    for _ in range(10):
        stage.end_next()
    started.compute.stop()


def test_the_next_microbatch_is_launched_while_the_device_works(
    stage: HeldStage, thread: Thread
) -> None:
    """A device that waits for its host between microbatches is idle for milliseconds each time."""
    thread.put(microbatch(0), microbatch(1))
    assert [0, 1] == [stage.launches.get(timeout=WAIT_S) for _ in range(2)]
    assert thread.acks.empty()
    stage.end_next()
    assert thread.ack().seq_no == 0


def test_no_more_than_two_are_launched(stage: HeldStage, thread: Thread) -> None:
    """Slots, scratch memory and what an abort cannot stop any more are bounded."""
    thread.put(*map(microbatch, range(4)))
    for _ in range(MOST_LAUNCHED):
        stage.launches.get(timeout=WAIT_S)
    with pytest.raises(queue.Empty):
        stage.launches.get(timeout=0.05)
    stage.end_next()
    assert stage.launches.get(timeout=WAIT_S) == MOST_LAUNCHED


def test_ends_are_told_in_order_with_their_results(stage: HeldStage, thread: Thread) -> None:
    """The scheduler takes acknowledgements in the order of seq_no, each with its own ids."""
    thread.put(*(microbatch(seq_no, seed=seq_no + 70) for seq_no in range(3)))
    for _ in range(3):
        stage.end_next()
    acks = [thread.ack() for _ in range(3)]
    assert [(ack.seq_no, list(ack.sampled_ids)) for ack in acks] == [
        (0, [70]),
        (1, [71]),
        (2, [72]),
    ]


def test_compute_time_is_the_device_s(stage: HeldStage, thread: Thread) -> None:
    """Latency is fitted to it: neither the launch nor the microbatch before may count."""
    thread.put(microbatch(0), microbatch(1))
    for _ in range(2):
        stage.launches.get(timeout=WAIT_S)
    for _ in range(2):
        stage.end_next()
    first, second = thread.ack(), thread.ack()
    assert [ack.compute_us for ack in (first, second)] == pytest.approx([2000, 2000], abs=1)
    assert second.wait_us == pytest.approx(1000, abs=1)
    assert second.started_us == pytest.approx(first.started_us + 3000, abs=2)


def test_rows_and_pages_are_seen_to_while_the_device_works(
    stage: HeldStage, thread: Thread
) -> None:
    """Such orders follow the device's own order and must not hold up a launch."""
    thread.put(
        microbatch(0),
        CopyPages(source_ids=(1,), target_ids=(2,)),
        ForgetRow(row=7),
        microbatch(1),
    )
    for _ in range(2):
        stage.launches.get(timeout=WAIT_S)
    assert stage.events == [
        "allocate 4 16",
        "launch 0",
        "copy (1,) to (2,)",
        "release 7",
        "launch 1",
    ]


def test_a_new_epoch_waits_for_the_device(stage: HeldStage, thread: Thread) -> None:
    """The pool is made anew, so nothing may still write to the old one."""
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()
    thread.put(microbatch(0), begin_epoch(2, begun, num_pages=8))
    stage.launches.get(timeout=WAIT_S)
    stage.end_next()
    begun.get(timeout=WAIT_S)
    assert stage.events == ["allocate 4 16", "launch 0", "end 0", "allocate 8 16"]
    assert thread.ack().epoch == 1


def test_microbatches_of_another_epoch_are_dropped(stage: HeldStage, thread: Thread) -> None:
    """They were sent before the scheduler knew, and their pages are others' now."""
    thread.put(microbatch(0, epoch=7), microbatch(0))
    stage.end_next()
    assert thread.ack().epoch == 1
    assert stage.launches.get(timeout=WAIT_S) == 0
    assert stage.launches.empty()


def test_a_broken_device_ends_the_worker(stage: HeldStage, thread: Thread) -> None:
    """An error of the device comes up where its end is waited for, and must not hang the thread."""
    stage.fails = True
    thread.put(microbatch(0), microbatch(1))
    stage.end_next()
    assert str(thread.crashes.get(timeout=WAIT_S)) == "the device is broken"
    thread.compute.stop()
    assert thread.acks.empty()


def test_a_stage_that_only_computes_is_acknowledged_at_once() -> None:
    """On a CPU nothing is launched: a second thread would only take time from the first."""
    stage = ScriptedStage(0, 1, 1, Script())
    thread = start(stage)
    thread.put(begin_epoch())
    try:
        thread.put(microbatch(0, seed=5))
        assert list(thread.ack().sampled_ids) == [65]
    finally:
        thread.compute.stop()
