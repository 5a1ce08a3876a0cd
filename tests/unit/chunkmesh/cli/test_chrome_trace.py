"""chrome_trace: valid by the Trace Event Format, and all there."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from chunkmesh.cli.chrome_trace import chrome_trace
from chunkmesh.cli.pipeline_trace import PipelineTrace
from tests.told_timelines import MS, told

Event = dict[str, Any]


@pytest.fixture
def events() -> list[Event]:
    """Return a trace of two requests, through JSON as a viewer gets it."""
    trace = PipelineTrace.of(
        [
            told("a", [(0, 0, 64), (1, 64, 64), (3, 128, 1)], predicted_ms=2),
            told("b", [(2, 0, 64), (3, 64, 1)], arrived_us=MS, prompt_tokens=64),
        ]
    )
    written = json.loads(json.dumps(chrome_trace(trace), allow_nan=False))
    assert {"traceEvents", "displayTimeUnit"} == set(written)
    assert written["displayTimeUnit"] in {"ms", "ns"}
    found: list[Event] = written["traceEvents"]
    return found


def slices(events: list[Event], pid: int, tid: int) -> list[Event]:
    """Return the slices of a thread."""
    return [
        each for each in events if each["ph"] == "X" and (each["pid"], each["tid"]) == (pid, tid)
    ]


def test_every_event_has_what_its_phase_asks_for(events: list[Event]) -> None:
    """Viewers drop what they cannot read without a word."""
    needed = {
        "X": {"name", "cat", "ts", "dur", "pid", "tid"},
        "M": {"name", "pid", "args"},
        "s": {"name", "cat", "id", "ts", "pid", "tid"},
        "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
    }
    assert {"X", "M", "s", "f"} == {each["ph"] for each in events}
    for each in events:
        assert needed[each["ph"]] <= set(each)
        assert all(isinstance(each[key], int) for key in ("ts", "dur", "pid", "tid") if key in each)
        assert each.get("ts", 0) >= 0
        assert each.get("dur", 0) >= 0


def test_processes_and_threads_are_named(events: list[Event]) -> None:
    """One process a stage, a thread for compute and one for sends; one process of requests."""
    processes = {
        each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"
    }
    threads = {
        (processes[each["pid"]], each["args"]["name"])
        for each in events
        if each["name"] == "thread_name"
    }
    assert {1: "requests", 2: "stage 0", 3: "stage 1"} == processes
    assert threads == {
        ("requests", "a"),
        ("requests", "b"),
        *((f"stage {stage}", name) for stage in (0, 1) for name in ("compute", "send")),
    }


def test_slices_of_a_thread_do_not_overlap(events: list[Event]) -> None:
    """Overlapping slices of one thread are drawn as one inside the other, or dropped."""
    threads: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for each in events:
        if each["ph"] == "X":
            threads[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    for spans in threads.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_compute_says_what_it_carries_and_what_was_expected(events: list[Event]) -> None:
    """The figures that one clicks a slice for."""
    computes = [each for each in slices(events, 2, 1) if each["name"] != "wait"]
    assert ["chunk 0", "chunk 1", "chunk 0", "decode"] == [each["name"] for each in computes]
    assert ["prefill", "prefill", "prefill", "decode"] == [each["cat"] for each in computes]
    assert computes[1]["args"] == {
        "epoch": 1,
        "seq_no": 1,
        "microbatch_tokens": 64,
        "measured_ms": 1.0,
        "predicted_ms": 2.0,
        "measured_over_predicted": 0.5,
        "parts": [{"request_id": "a", "chunk": 1, "first_position": 64, "tokens": 64}],
    }
    assert ["a", "b"] == [each["request_id"] for each in computes[3]["args"]["parts"]]
    assert "predicted_ms" not in computes[2]["args"]


def test_waits_and_sends_are_slices_of_their_own(events: list[Event]) -> None:
    """A wait ends where its compute begins; a send begins where it ends."""
    thread = slices(events, 3, 1)
    assert ("wait", "chunk 0") == (thread[0]["name"], thread[1]["name"])
    assert thread[0]["ts"] + thread[0]["dur"] == thread[1]["ts"] == MS
    sends = slices(events, 2, 2)
    assert [(MS, MS // 4), (2 * MS, MS // 4)] == [(each["ts"], each["dur"]) for each in sends[:2]]
    assert [] == slices(events, 3, 2)


def test_arrows_join_the_stages(events: list[Event]) -> None:
    """Each microbatch's way, bound to slices that are there."""
    starts = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = {each["id"]: each for each in events if each["ph"] == "f"}
    assert 4 == len(starts)
    assert starts.keys() == ends.keys()
    for arrow_id, start in starts.items():
        end = ends[arrow_id]
        assert (start["pid"] + 1, start["ts"] + MS) == (end["pid"], end["ts"])
        for each in (start, end):
            assert each["ts"] in {one["ts"] for one in slices(events, each["pid"], each["tid"])}


def test_requests_are_shown_from_arrival_to_end(events: list[Event]) -> None:
    """Waiting in the queue is part of a request's life and of no stage's."""
    assert [("to first token", MS, 3 * MS), ("decode", 4 * MS, 3 * MS)] == [
        (each["name"], each["ts"], each["dur"]) for each in slices(events, 1, 2)
    ]
