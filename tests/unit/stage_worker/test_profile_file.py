"""A kept profile is used by the stage that it is of, and by no other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from stage_worker.profile_file import ProfileSubject, read_profile, write_profile
from stage_worker.profile_plan import ProfileLimits, ProfilePoint, ProfileShape
from tests.scripted_stage import Script, ScriptedStage

_LIMITS = ProfileLimits(max_chunk_tokens=64, max_prefix_tokens=256, max_rows=8, budget_ms=18_000.0)
_POINTS = (
    ProfilePoint(shape=ProfileShape(prefix_tokens=256, chunk_tokens=64), compute_us=1234),
    ProfilePoint(shape=ProfileShape(prefix_tokens=16, num_rows=8), compute_us=56),
)


def _subject(**changes: Any) -> ProfileSubject:
    """Describe a stage; changes are those of its description."""
    stage = ScriptedStage(0, 2, 4, Script())
    description = dataclasses.replace(stage.description, **changes)
    return ProfileSubject.of(description, _LIMITS, runtime="torch 1", threads=1)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """A restart must be ready at once; nothing half-written may stay beside it."""
    folder = tmp_path / "made" / "here"
    write_profile(folder, _subject(), _POINTS)
    assert _POINTS == read_profile(folder, _subject())
    assert [_subject().file_name] == [path.name for path in folder.iterdir()]


def test_nothing_kept_is_no_fault(tmp_path: Path) -> None:
    """Every worker's first start is like this."""
    with capture_logs() as logs:
        assert read_profile(tmp_path / "none", _subject()) is None
    assert [] == logs


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_digests": (b"other", b"x")},
        {"head_digest": b"x"},
        {"config_digest": b"x"},
        {"dtype": torch.bfloat16},
        {"hardware": "NVIDIA H200"},
        {"first_layer": 1, "last_layer": 3},
    ],
)
def test_another_stage_is_measured_anew(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Times of other weights, types or devices would plan wrong chunks for good."""
    write_profile(tmp_path, _subject(), _POINTS)
    assert read_profile(tmp_path, _subject(**changes)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 2),
        ("processor", "another"),
        ("runtime", "torch 2"),
        ("plan_version", 0),
        ("max_chunk_tokens", 128),
        ("budget_ms", 1.0),
    ],
)
def test_another_machine_or_plan_is_measured_anew(tmp_path: Path, name: str, value: object) -> None:
    """All of these change what is measured."""
    write_profile(tmp_path, _subject(), _POINTS)
    assert read_profile(tmp_path, _subject().model_copy(update={name: value})) is None


def _text(**changes: object) -> str:
    """Return the text of a file with other fields."""
    point = {"prefix_tokens": 1, "chunk_tokens": 2, "num_rows": 0, "compute_us": 3}
    fields: dict[str, object] = {
        "format": "chunkmesh-profile",
        "version": 1,
        "subject": _subject().model_dump(),
        "points": [point],
    }
    return json.dumps(fields | changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        _text()[:-20],
        _text(version=2),
        _text(points=[]),
        _text(points=[{"prefix_tokens": 1, "chunk_tokens": 2, "compute_us": 0}]),
        _text(points=[{"prefix_tokens": 1, "chunk_tokens": 2, "num_rows": 1, "compute_us": 3}]),
        _text(points=[{"prefix_tokens": -1, "chunk_tokens": 2, "compute_us": 3}]),
        _text(points=[{"prefix_tokens": 1, "chunk_tokens": 2, "compute_us": 1e400}]),
        _text(points=[{"prefix_tokens": 1, "chunk_tokens": 2, "compute_us": 3}] * 2000),
        _text(subject=_subject(hardware="another").model_dump()),
    ],
)
def test_a_damaged_file_is_a_warning(tmp_path: Path, text: str) -> None:
    """It must neither stop the worker nor be believed; the next profile replaces it."""
    path = tmp_path / _subject().file_name
    path.write_text(text)
    with capture_logs() as logs:
        assert read_profile(tmp_path, _subject()) is None
    assert [("kept profile not used", "warning")] == [
        (line["event"], line["log_level"]) for line in logs
    ]
    assert logs[0]["reason"]
    write_profile(tmp_path, _subject(), _POINTS)
    assert _POINTS == read_profile(tmp_path, _subject())


def test_a_sound_text_is_read(tmp_path: Path) -> None:
    """The damaged ones above must be damaged by what they change."""
    (tmp_path / _subject().file_name).write_text(_text())
    point = ProfilePoint(shape=ProfileShape(prefix_tokens=1, chunk_tokens=2), compute_us=3)
    assert (point,) == read_profile(tmp_path, _subject())


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    """A container without a home must serve all the same."""
    (tmp_path / "file").write_text("")
    with capture_logs() as logs:
        write_profile(tmp_path / "file" / "profiles", _subject(), _POINTS)
    assert [("profile not kept", "warning")] == [
        (line["event"], line["log_level"]) for line in logs
    ]
