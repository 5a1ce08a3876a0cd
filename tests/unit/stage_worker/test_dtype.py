"""Which element type a stage computes in, and what the log says of it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import MutableMapping
from typing import Any

import pytest
import structlog
import torch

from chunkmesh.errors import ConfigError
from stage_worker.element_type import DtypeChoice
from stage_worker.model_stage import load_stage
from stage_worker.weight_choice import DUMMY
from tests.fp8_folders import quantise
from tests.narrow_models import make_narrow, store_as
from tests.tiny_models import edit_config, make_tiny

Logs = list[MutableMapping[str, Any]]


def _load(path: pathlib.Path, dtype: DtypeChoice = "auto") -> tuple[torch.dtype, Logs]:
    """Return the type of a loaded stage, and the warnings."""
    with structlog.testing.capture_logs() as logs:
        stage = load_stage(path, layers=range(1, 3), dtype=dtype)
    return stage.description.dtype, [log for log in logs if log["log_level"] == "warning"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_the_declared_type_is_used(tmp_path: pathlib.Path, dtype: str, field: str) -> None:
    """No option is needed, and nothing is warned of (O26 d); tools wrote two names."""
    make_narrow(tmp_path, "Llama", dtype)
    edit_config(tmp_path, **{"dtype": None, field: dtype})
    assert (getattr(torch, dtype), []) == _load(tmp_path)


def test_float16_asked_of_a_bfloat16_model(tmp_path: pathlib.Path) -> None:
    """One warning names both and says why: such models answer in exclamation marks (O26 d)."""
    make_narrow(tmp_path, "Llama", "bfloat16")
    dtype, [warning] = _load(tmp_path, "float16")
    assert dtype == torch.float16
    assert (warning["dtype"], warning["model_dtype"]) == ("float16", "bfloat16")
    assert "65504" in warning["why"]


@pytest.mark.parametrize("declared", ["float32", "float16"])
def test_bfloat16_asked_of_another_model(tmp_path: pathlib.Path, declared: str) -> None:
    """What is lost there is precision."""
    make_narrow(tmp_path, "Llama", declared)
    dtype, [warning] = _load(tmp_path, "bfloat16")
    assert dtype == torch.bfloat16
    assert (warning["dtype"], warning["model_dtype"]) == ("bfloat16", declared)
    assert "8 significant bits" in warning["why"]


@pytest.mark.parametrize("declared", ["bfloat16", "float16"])
def test_float32_is_asked_for_in_silence(tmp_path: pathlib.Path, declared: str) -> None:
    """It holds every value of the narrow types."""
    make_narrow(tmp_path, "Llama", declared)
    assert (torch.float32, []) == _load(tmp_path, "float32")


def test_one_line_says_what_is_used(tmp_path: pathlib.Path) -> None:
    """Speed, memory and digits hang on it, so it can be read in the log."""
    make_narrow(tmp_path, "Llama", "bfloat16")
    with structlog.testing.capture_logs() as logs:
        load_stage(tmp_path, layers=range(4), dtype="float32")
    assert logs == [
        {
            "event": "dtype chosen",
            "log_level": "info",
            "dtype": "float32",
            "declared": "bfloat16",
            "asked": "float32",
        }
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_stored_types_count_where_none_is_declared(tmp_path: pathlib.Path, dtype: str) -> None:
    """Old folders say nothing."""
    make_tiny(tmp_path, "Llama")
    store_as(tmp_path, dtype)
    edit_config(tmp_path, dtype=None)
    assert (getattr(torch, dtype), []) == _load(tmp_path)


@pytest.mark.parametrize("declared", ["bfloat16", None])
def test_fp8_is_computed_in_a_wider_type(tmp_path: pathlib.Path, declared: str | None) -> None:
    """Eight bits are how weights are stored, not what is computed in."""
    make_tiny(tmp_path / "source", "Llama")
    quantise(tmp_path / "source", tmp_path / "fp8", tmp_path / "plain", 48)
    edit_config(tmp_path / "fp8", dtype=declared)
    expected = torch.float32 if declared is None else torch.bfloat16  # its norms are float32
    assert (expected, []) == _load(tmp_path / "fp8")


def test_dummy_weights_have_the_declared_type(tmp_path: pathlib.Path) -> None:
    """A benchmark without weights measures what the weights would cost."""
    make_tiny(tmp_path, "Llama")
    edit_config(tmp_path, dtype="bfloat16")
    stage = load_stage(tmp_path, layers=range(4), choice=DUMMY)
    assert stage.description.dtype == torch.bfloat16


@pytest.mark.parametrize("value", ["float64", "torch.bfloat16", "auto", 16])
def test_an_unknown_type_is_refused(tmp_path: pathlib.Path, value: object) -> None:
    """By name, and with those that are known; also when another one is asked for."""
    make_tiny(tmp_path, "Llama")
    edit_config(tmp_path, dtype=value)
    with pytest.raises(ConfigError) as error:
        _load(tmp_path, "float32")
    assert f"dtype={value!r} is not known; known are float32, bfloat16, float16" in str(error.value)


def test_two_declared_types_are_refused(tmp_path: pathlib.Path) -> None:
    """Neither name outranks the other."""
    make_tiny(tmp_path, "Llama")
    edit_config(tmp_path, dtype="bfloat16", torch_dtype="float16")
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(ConfigError, match=r"two element types.*bfloat16.*float16"):
        _load(tmp_path)
