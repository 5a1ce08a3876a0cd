"""Services on hosts of their own, and a network between them that is cut, slow or loses packets."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkmesh.v1 import generation_pb2 as pb
from tests.eventually import eventually_blocking
from tests.mesh_of_hosts import MeshOfHosts, mesh_of_hosts
from tests.network_hosts import network, unable

PROMPT = "far and near, here and there: " * 8
WORKERS = {"first": "0-1", "last": "2-3", "spare": "2-3"}
HOSTS = ("scheduler", *WORKERS)
SOON_S = 60.0
"""For what takes a second or two where nothing else runs."""

pytestmark = [
    pytest.mark.skipif(bool(unable()), reason=unable() or "it can"),
    pytest.mark.alone,
]


@pytest.fixture(scope="module")
def mesh(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshOfHosts]:
    """Run one mesh of four hosts; each test leaves the network as it was."""
    flags = ["--stage-deadline-floor=0.3"]
    with (
        network(*HOSTS) as hosts,
        mesh_of_hosts(
            hosts, tiny, tmp_path_factory.mktemp("logs"), WORKERS, scheduler_flags=flags
        ) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def undisturbed(mesh: MeshOfHosts) -> list[int]:
    """Return the ids that everybody must get."""
    return ask(mesh, 40)


def ask(mesh: MeshOfHosts, num_tokens: int) -> list[int]:
    """Run a request of its own prefix and return its ids."""
    params = pb.SamplingParams(max_new_tokens=num_tokens, ignore_eos=True, temperature=0)
    return list(mesh.generate(text=PROMPT, sampling_params=params).output_ids)


def last_stage(mesh: MeshOfHosts) -> str:
    """Return the host of the last stage of the route that stands."""
    (stage,) = (each for each in mesh.workers() if each.stage_index == 1 and each.HasField("epoch"))
    return mesh.host_of(stage)


def all_attached(mesh: MeshOfHosts) -> bool:
    """Whether a route stands and there is a spare beside it."""
    states = sorted(each.state for each in mesh.workers())
    serving, spare = pb.WORKER_STATE_SERVING, pb.WORKER_STATE_SPARE
    return states == [serving, serving, spare]


def cut(mesh: MeshOfHosts, *ways: tuple[str, str], undisturbed: list[int]) -> None:
    """Cut ways while a request runs; it must be answered all the same, and the mesh be whole again.

    The host of the last stage must have been replaced meanwhile.
    """
    before, requests_before = last_stage(mesh), mesh.network.num_carried
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, mesh, len(undisturbed))
        eventually_blocking(lambda: mesh.network.num_carried > requests_before + 40)
        for source, target in ways:
            mesh.network.way(source, target).is_cut = True
        try:
            assert undisturbed == answer.result(SOON_S)
            assert ask(mesh, 3) == undisturbed[:3]
            assert last_stage(mesh) != before
        finally:
            for source, target in ways:
                mesh.network.way(source, target).is_cut = False
    eventually_blocking(lambda: all_attached(mesh), within_s=SOON_S)


def test_delay_and_loss_change_no_id(mesh: MeshOfHosts, undisturbed: list[int]) -> None:
    """Slow is not lost: no worker is given up, and TCP brings what the network loses."""
    before = last_stage(mesh)
    ways = [mesh.network.way(a, b) for a in HOSTS for b in HOSTS if a != b]
    for way in ways:
        way.delay_s, way.loss = 0.005, 0.01
    try:
        assert undisturbed == ask(mesh, len(undisturbed))
    finally:
        for way in ways:
            way.delay_s = way.loss = 0.0
    assert last_stage(mesh) == before


def test_a_worker_that_is_cut_off_from_all(mesh: MeshOfHosts, undisturbed: list[int]) -> None:
    """Its machine has lost its network: silence, and a spare takes its place."""
    lost = last_stage(mesh)
    ways = [pair for other in HOSTS if other != lost for pair in ((lost, other), (other, lost))]
    cut(mesh, *ways, undisturbed=undisturbed)


def test_a_worker_that_is_not_heard(mesh: MeshOfHosts, undisturbed: list[int]) -> None:
    """It hears the scheduler and computes, but what it says is lost on the way."""
    cut(mesh, (last_stage(mesh), "scheduler"), undisturbed=undisturbed)


def test_a_link_between_stages_that_is_cut(mesh: MeshOfHosts, undisturbed: list[int]) -> None:
    """Both are heard and neither knows of it: the deadline of the stage that waits finds out."""
    lost = last_stage(mesh)
    cut(mesh, ("first", lost), (lost, "first"), undisturbed=undisturbed)
