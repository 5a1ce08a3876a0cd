"""What workers say is heard on the stream that counts, and on no other."""

from __future__ import annotations

import pytest

from chunkmesh.v1 import stage_pb2 as pb
from scheduler.events import Event, Loaded, RouteFormed, Stored
from scheduler.page_keying import PageKeying
from scheduler.stage_fit import StageFit, profile_fit
from scheduler.worker_stream import WorkerStream
from scheduler.workers import Workers
from tests.hellos import hello, new_registry


class _Mesh:
    """Two workers, whose orders nobody takes."""

    def __init__(self) -> None:
        """Form a route of both."""
        self.heard: list[Event] = []
        self.workers = Workers(
            registry=new_registry(),
            on_event=self.heard.append,
            max_microbatch_tokens=64,
            keying=PageKeying(rope=""),
        )
        self.first = self.attach("a", 0, 3)
        self.last = self.attach("b", 3, 6)
        self.stand()

    def attach(self, worker_id: str, first: int, last: int) -> WorkerStream:
        """Let a worker attach, perhaps once more."""
        said = hello(worker_id, first, last)
        fit: StageFit = profile_fit(said.layers, said.profile)
        return self.workers.attach(said, fit)

    def stand(self) -> None:
        """Let both answer all that a route asks for."""
        epoch = self.workers.registry.epoch
        for said in (
            pb.AttachRequest(join_ready=pb.JoinReady(epoch=epoch)),
            pb.AttachRequest(joined=pb.Joined(epoch=epoch)),
        ):
            for stream in (self.first, self.last):
                self.workers.hear(stream, said)
        assert isinstance(self.heard[-1], RouteFormed)
        assert list(self.workers.routes) == [epoch]


_LATE = {
    "fault": pb.AttachRequest(fault=pb.Fault(epoch=1, reason="a link broke")),
    "leaving": pb.AttachRequest(leaving=pb.Leaving()),
    "heartbeat": pb.AttachRequest(heartbeat=pb.Heartbeat()),
    "load_done": pb.AttachRequest(load_done=pb.LoadDone(load_id=0)),
    "store_done": pb.AttachRequest(store_done=pb.StoreDone(store_id=0)),
}


@pytest.mark.parametrize("kind", _LATE)
def test_who_was_given_up_is_not_heard_any_more(kind: str) -> None:
    """A worker that was stopped says much when it goes on, before it knows that it was given up."""
    mesh = _Mesh()
    mesh.workers.lose_stream(mesh.first, "silent for 1.1 s")
    mesh.heard.clear()
    mesh.workers.hear(mesh.first, _LATE[kind])
    assert mesh.heard == []
    assert list(mesh.workers.registry.workers) == ["b"]


@pytest.mark.parametrize("kind", _LATE)
def test_an_earlier_stream_of_a_worker_is_not_heard_in_its_new_route(kind: str) -> None:
    """Numbers of loads and stores begin anew in each epoch: old ones would name new ones."""
    mesh = _Mesh()
    earlier, mesh.first = mesh.first, mesh.attach("a", 0, 3)
    mesh.stand()
    mesh.heard.clear()
    mesh.workers.hear(earlier, _LATE[kind])
    assert mesh.heard == []
    assert mesh.workers.registry.leaving == set()
    mesh.workers.hear(mesh.first, _LATE["load_done"])
    mesh.workers.hear(mesh.first, _LATE["store_done"])
    assert [type(each) for each in mesh.heard] == [Loaded, Stored]
