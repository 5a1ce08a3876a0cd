"""trace_text and trace_picture: a trace for people."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from chunkmesh.cli import trace_picture
from chunkmesh.cli.pipeline_trace import PipelineTrace
from chunkmesh.cli.trace_text import trace_text
from tests.told_timelines import MS, told

PREFILL = [(0, 0, 64), (1, 64, 64)]


def test_the_text_tells_bubble_and_expectation() -> None:
    """The two figures that a plan is judged by."""
    text = trace_text(PipelineTrace.of([told("a", PREFILL, predicted_ms=2)]), 60)
    lines = text.splitlines()
    assert lines[0].startswith("a: 128 tokens, 0 cached, first token after 0.003 s, 2 output")
    assert "bubble ratio of its prefill: 33.3% (stages computed nothing of this request)" in lines
    assert "stage 1: measured over expected compute of chunks: median 0.50, 0.50 to 0.50" in lines
    assert "wait / compute / expected / send ms" in text
    assert "1.0 /     2.0 /     0.2" in text


def test_the_text_of_several_requests_is_one_below_the_other() -> None:
    """Each with its own lanes; when it came is told."""
    later = told("b", [(2, 0, 64)], arrived_us=2 * MS, prompt_tokens=64)
    text = trace_text(PipelineTrace.of([told("a", PREFILL), later]), 60)
    assert "b: 64 tokens" in text
    assert "arrived 0.002 s after the first" in text
    assert "expected" not in text
    assert "(stages computed nothing of these requests)" in text


def test_the_text_says_what_is_missing() -> None:
    """A trace that was cut must not look whole."""
    cut = told("a", PREFILL)
    cut.num_parts = 5000
    assert "only the first 2 of its 5000 parts were kept" in trace_text(PipelineTrace.of([cut]), 60)


@pytest.mark.parametrize("predicted_ms", [None, 2])
@pytest.mark.parametrize("num_requests", [1, 3])
def test_pictures_are_written(tmp_path: Path, num_requests: int, predicted_ms: int | None) -> None:
    """Of one request and of several, with a latency model and without."""
    requests = [
        told(
            f"request-of-a-long-name-{index}",
            [(2 * index, 0, 64), (2 * index + 1, 64, 64), (2 * index + 9, 128, 1)],
            arrived_us=index * MS,
            predicted_ms=predicted_ms,
        )
        for index in range(num_requests)
    ]
    trace = PipelineTrace.of(requests)
    trace_picture.save(trace, tmp_path / "a.png", "png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    trace_picture.save(trace, tmp_path / "a.svg", "svg")
    root = ET.parse(tmp_path / "a.svg").getroot()  # noqa: S314 - our own file
    assert root.tag.endswith("svg")


def test_a_request_without_a_microbatch_has_a_picture(tmp_path: Path) -> None:
    """It waited; the strip shows how long."""
    trace = PipelineTrace.of([told("a", [], finish_reason="gone")])
    trace_picture.save(trace, tmp_path / "a.png", "png")
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize("num_requests", [1, 2])
def test_an_id_is_no_formula(tmp_path: Path, num_requests: int) -> None:
    """Dollars in a client's id ended the picture with a syntax error."""
    trace = PipelineTrace.of([told(f"$x^{{${index}", PREFILL) for index in range(num_requests)])
    trace_picture.save(trace, tmp_path / "a.png", "png")
    assert (tmp_path / "a.png").stat().st_size > 0
