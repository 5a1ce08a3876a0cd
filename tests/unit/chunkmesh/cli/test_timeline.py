"""chunkmesh.cli.timeline, timeline_text and timeline_picture: when each stage worked."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.cli.timeline import Timeline
from chunkmesh.cli.timeline_picture import Panel, save
from chunkmesh.cli.timeline_text import draw
from chunkmesh.v1 import generation_pb2 as pb


def _complete() -> pb.GenerateComplete:
    """Two chunks of 4 tokens and a decode step on two stages, 1 s each, no gap."""
    complete = pb.GenerateComplete(prompt_tokens=8, cached_tokens=0)
    for index, (start, num_tokens) in enumerate([(0, 4), (4, 4), (8, 1)]):
        timing = complete.timeline.add(seq_no=index + 7, start=start, num_tokens=num_tokens)
        begin_us = index * 1_000_000 + (1_000_000 if index == 2 else 0)
        for stage in (0, 1):
            timing.stages.add(
                stage_index=stage,
                start_us=begin_us + stage * 1_000_000,
                wait_us=1_000_000 if (stage, index) == (1, 0) else 0,
                compute_us=1_000_000,
                send_us=100_000 if stage == 0 else 0,
            )
    return complete


def test_prefill_and_decode_are_told_apart() -> None:
    """A decode step has one token, but so may a last chunk: only the position tells."""
    timeline = Timeline.of(_complete())
    assert [step.start for step in timeline.chunks] == [0, 4]
    assert [step.start for step in timeline.decode] == [8]
    assert timeline.num_stages == 2


def test_microbatches_are_ordered_by_sequence() -> None:
    """Acknowledgements of stages come in any order."""
    complete = _complete()
    shuffled = pb.GenerateComplete(prompt_tokens=8, timeline=list(reversed(complete.timeline)))
    assert Timeline.of(shuffled) == Timeline.of(complete)


def test_a_wait_that_began_before_the_request_is_cut() -> None:
    """An idle stage has waited for minutes; the picture begins at the request's arrival."""
    complete = _complete()
    complete.timeline[0].stages[0].wait_us = 60_000_000
    work = Timeline.of(complete).chunks[0].work[0]
    assert (work.ready_s, work.start_s) == (0.0, 0.0)


def test_busy_share_is_over_the_prefill() -> None:
    """Each stage computes two of the three seconds that the two chunks take."""
    timeline = Timeline.of(_complete())
    assert timeline.prefill_s == pytest.approx(3.0)
    assert timeline.busy_share(0) == pytest.approx(2 / 3)


def test_the_lanes_show_chunks_waits_and_overlap() -> None:
    """The text must show chunk 1 on stage 0 while chunk 0 is on stage 1."""
    lines = draw(Timeline.of(_complete()), width=38).splitlines()
    assert lines[1] == "stage 0 " + "0" * 10 + "1" * 10
    assert lines[2] == "stage 1 " + "." * 10 + "0" * 10 + "1" * 10
    assert lines[0].startswith("        |0.00 s")


def test_loading_cached_pages_is_shown_until_the_first_compute() -> None:
    """Otherwise the cached run would seem to wait for nothing."""
    complete = pb.GenerateComplete(prompt_tokens=8, cached_tokens=4)
    timing = complete.timeline.add(start=4, num_tokens=4)
    timing.stages.add(stage_index=0, start_us=1_000_000, compute_us=1_000_000)
    lines = draw(Timeline.of(complete), width=28).splitlines()
    assert lines[1] == "stage 0 " + "=" * 10 + "0" * 10


def test_the_rows_give_positions_and_times() -> None:
    """A reader who compares chunk sizes needs figures, not only marks."""
    text = draw(Timeline.of(_complete()), width=38)
    assert "    1  4-7               4" in text
    assert "1000.0 /  1000.0 /     0.0" in text
    assert text.endswith("computing during prefill: stage 0 67%, stage 1 67%")


def test_a_request_without_a_timeline_draws_nothing() -> None:
    """A server may leave the timeline out."""
    assert draw(Timeline.of(pb.GenerateComplete(prompt_tokens=3))) == "no timeline"


def test_the_picture_is_written(tmp_path: Path) -> None:
    """Also with an empty panel: a prompt that was wholly cached has hardly any chunk."""
    path = tmp_path / "timeline.png"
    empty = Timeline.of(pb.GenerateComplete(prompt_tokens=3))
    save(
        [Panel(title="a", timeline=Timeline.of(_complete())), Panel(title="b", timeline=empty)],
        path,
    )
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
