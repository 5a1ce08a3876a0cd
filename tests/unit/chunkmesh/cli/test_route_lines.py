"""chunkmesh.cli.route_lines: what people read of routes, spares and who leaves."""

from __future__ import annotations

import pytest

from chunkmesh.cli.message_json import fields_of
from chunkmesh.cli.route_lines import epoch_text, place_text, route_lines, routes_text
from chunkmesh.v1 import generation_pb2 as pb

_EPOCH = (1 << 32) + 7


def _worker(state: pb.WorkerState.ValueType, stage_index: int | None = None) -> pb.WorkerInfo:
    return pb.WorkerInfo(state=state, stage_index=stage_index)


def test_an_epoch_is_a_term_and_a_number() -> None:
    """Nobody can read 4294967303."""
    assert epoch_text(_EPOCH) == "1.7"


@pytest.mark.parametrize(
    ("stands", "states", "text"),
    [
        ([], [], "none"),
        ([], [pb.WORKER_STATE_SPARE], "none, 1 spare"),
        ([True, True, False], [pb.WORKER_STATE_SERVING], "2 standing, 1 forming"),
        (
            [True],
            [pb.WORKER_STATE_SPARE, pb.WORKER_STATE_SPARE, pb.WORKER_STATE_LEAVING],
            "1 standing, 2 spares, 1 leaving",
        ),
    ],
)
def test_routes_and_who_is_in_none_are_counted(
    stands: list[bool], states: list[pb.WorkerState.ValueType], text: str
) -> None:
    """One look says whether another loss would be bridged."""
    info = pb.GetServerInfoResponse(
        routes=[pb.RouteInfo(stands=each) for each in stands], workers=map(_worker, states)
    )
    assert routes_text(info) == text


def test_each_route_has_a_line() -> None:
    """Its load and age, or that it forms."""
    info = pb.GetServerInfoResponse(
        routes=[
            pb.RouteInfo(
                epoch=_EPOCH,
                stands=True,
                worker_ids=["a", "b"],
                num_pages=10,
                free_pages=7,
                num_requests_running=2,
                num_microbatches_in_flight=1,
                stood_ms=61_400,
            ),
            pb.RouteInfo(epoch=_EPOCH + 1, worker_ids=["c"]),
        ]
    )
    assert list(route_lines(info)) == [
        (
            "route 1.7  2 stages, stands for 61 s, 2 running, 1 microbatches in flight,"
            " 3 of 10 pages in use"
        ),
        "route 1.8  1 stage, forms",
    ]


@pytest.mark.parametrize(
    ("worker", "text"),
    [
        (_worker(pb.WORKER_STATE_SERVING, 1), "1"),
        (_worker(pb.WORKER_STATE_JOINING, 0), "0 joining"),
        (_worker(pb.WORKER_STATE_SPARE), "spare"),
        (_worker(pb.WORKER_STATE_LEAVING), "leaving"),
        (_worker(pb.WORKER_STATE_UNSPECIFIED), "spare"),
    ],
)
def test_a_worker_has_a_place(worker: pb.WorkerInfo, text: str) -> None:
    """A scheduler of an earlier version does not say what workers do, but which have no stage."""
    assert place_text(worker) == text


def test_states_are_words_in_json() -> None:
    """Scripts compare them; a state that only a later version knows is its number."""
    assert fields_of(_worker(pb.WORKER_STATE_SPARE))["state"] == "spare"
    later = pb.WorkerInfo.FromString(pb.WorkerInfo(worker_id="w").SerializeToString() + b"\x50\x63")
    assert fields_of(later)["state"] == "99"
