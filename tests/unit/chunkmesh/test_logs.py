"""Logs of ours and of libraries take the same shape."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from chunkmesh import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_json_with_level_time_and_service(capsys: pytest.CaptureFixture[str]) -> None:
    """Collectors need no parser of ours."""
    logs.set_up(service="hicache", level="info", log_format="json")
    structlog.get_logger().info("page stored", num_pages=3)
    (line,) = _lines(capsys)
    timestamp = line.pop("timestamp")
    assert timestamp.endswith("Z")
    assert line == {"event": "page stored", "num_pages": 3, "level": "info", "service": "hicache"}


def test_lines_below_the_level_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    """Only what was asked for is written."""
    logs.set_up(service="hicache", level="warning", log_format="json")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in _lines(capsys)] == ["loud"]


def test_warnings_of_libraries_take_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    """A library's warning must not break the one-object-a-line format; its chatter stays out."""
    logs.set_up(service="hicache", level="info", log_format="json")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble with %s", "x")
    (line,) = _lines(capsys)
    assert (line["event"], line["logger"]) == ("trouble with x", "library")


def test_an_error_with_its_traceback_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback inside a string keeps the line whole."""
    logs.set_up(service="hicache", level="info", log_format="json")
    try:
        int("x")
    except ValueError:
        logging.getLogger("library").exception("failed")
    (line,) = _lines(capsys)
    assert "ValueError: invalid literal" in line["exception"]
