"""The compute thread copies pages between pool and host memory in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chunkmesh.page_record import PageFormat
from stage_worker.compute import BeginEpoch, Compute, Listener, Order, SavePages, UseLoad
from stage_worker.host_pages import HostPages
from stage_worker.page_jobs import StoreJob
from stage_worker.page_store import PageReader
from stage_worker.staging import StagedLoad
from tests.scripted_stage import Script, ScriptedStage

FORM = PageFormat(dtype="float32", page_tokens=16, model_layers=4, layer_bytes=8)


class CopyingScriptedStage(ScriptedStage):
    """Notes what it is to copy; so does the page I/O of these tests."""

    def __init__(self) -> None:
        super().__init__(2, 4, 4, Script())
        self.done: list[object] = []
        self.host = HostPages(4096)

    def save_pages(self, page_ids: Sequence[int], _pages: Sequence[torch.Tensor]) -> None:
        """Note pages."""
        self.done.append(("save", tuple(page_ids)))

    def wait_saved(self) -> None:
        """Note that."""
        self.done.append("wait")

    def restore_pages(
        self, page_ids: Sequence[int], _pages: Sequence[torch.Tensor]
    ) -> Callable[[], float]:
        """Note pages."""
        self.done.append(("restore", tuple(page_ids)))
        return lambda: 0.0


@pytest.fixture
def stage() -> CopyingScriptedStage:
    """Return a stage that copies pages by itself."""
    return CopyingScriptedStage()


def obey(stage: CopyingScriptedStage, *orders: Order, load: StagedLoad | None = None) -> None:
    """Carry out orders of the first epoch; faults are noted with the copies."""
    page_io: Any = SimpleNamespace(
        host=stage.host,
        take=lambda _load_id: load,
        copy_out=lambda job: stage.done.append(("store", job.source is stage.host)),
    )
    crashes: list[BaseException] = []
    listener = Listener(
        acked=lambda _ack: None,
        fault=lambda _epoch, reason: stage.done.append(reason),
        crashed=crashes.append,
    )
    compute = Compute(stage, page_io, listener)
    compute.start()
    compute.put(BeginEpoch(epoch=1, num_pages=4, page_tokens=16, done=lambda: None))
    for order in orders:
        compute.put(order)
    compute.stop()
    assert crashes == []


def store_job(source: PageReader) -> StoreJob:
    """Return a store of nothing."""
    return StoreJob(epoch=1, form=FORM, store_id=0, pages=(), source=source, page_bytes=16)


def staged(*, num_host: int, num_read: int) -> StagedLoad:
    """Return a load that has ended."""
    load = StagedLoad(
        load_id=0,
        num_room=num_read,
        page_shape=(2, stage_layer_bytes()),
        host_ids=tuple(range(num_host)),
        num_pages=num_read,
    )
    load.add(0, load.room(slice(0, num_read)))
    return load


def stage_layer_bytes() -> int:
    """Return what a page takes in a layer of these stages."""
    stage = CopyingScriptedStage()
    stage.allocate(num_pages=1, page_tokens=16)
    return stage.page_layer_bytes()


def test_host_pages_are_stored_once_they_are_there(stage: CopyingScriptedStage) -> None:
    """A device copies beside its computing; what is stored from the pool waits for nothing."""
    obey(stage, SavePages(page_ids=(1,), host_ids=(0,)), store_job(stage.host), store_job(stage))
    assert stage.done == [("save", (1,)), "wait", ("store", True), ("store", False)]


@pytest.mark.parametrize(("num_host", "num_read"), [(2, 0), (1, 1), (2, 1)])
def test_a_load_brings_host_pages_before_what_was_read(
    stage: CopyingScriptedStage, num_host: int, num_read: int
) -> None:
    """As many as are used, all in one go: stages may have more than the one that has least."""
    load = staged(num_host=num_host, num_read=num_read)
    obey(stage, UseLoad(load_id=0, page_ids=(3, 2)), load=load)
    assert stage.done == [("restore", (3, 2))]


def test_a_load_that_lacks_pages_breaks_the_epoch(stage: CopyingScriptedStage) -> None:
    """The request would go on from pages that hold something else."""
    obey(stage, UseLoad(load_id=0, page_ids=(3, 2, 1)), load=staged(num_host=1, num_read=1))
    assert stage.done == ["load 0 is gone"]
