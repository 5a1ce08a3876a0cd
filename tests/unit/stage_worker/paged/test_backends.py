"""What computes a stage's operations, and what is told of it."""

from __future__ import annotations

import pathlib

import pytest
import structlog
import torch

from stage_worker.model_config import ModelConfig, read_model_config
from stage_worker.paged import backends
from stage_worker.stage import Backend
from tests.tiny_models import make_tiny

GPU = torch.device("cuda", 0)


def config_of(path: pathlib.Path, family: str) -> ModelConfig:
    """Return the config of a family's tiny model."""
    make_tiny(path, family)
    return read_model_config(path)


def test_every_choice_is_logged_with_its_reason(tmp_path: pathlib.Path) -> None:
    """Nobody should have to guess why a stage is slow."""
    config = config_of(tmp_path, "Mistral")
    with structlog.testing.capture_logs() as logs:
        chosen = backends.choose(
            config, dtype=torch.bfloat16, device=torch.device("cpu"), wants_fp8=False
        )
    told = [
        Backend(operation=entry["operation"], name=entry["name"], reason=entry["reason"])
        for entry in logs
    ]
    assert list(chosen.backends) == told
    assert told == [
        Backend(operation="prefill attention", name="torch", reason="the device is cpu, not cuda"),
        Backend(operation="decode attention", name="torch", reason="the device is cpu, not cuda"),
        Backend(operation="fused operations", name="torch", reason="the device is cpu, not cuda"),
        Backend(operation="matrix products", name="torch", reason="weights are torch.bfloat16"),
        Backend(
            operation="attention of limited reach",
            name="torch",
            reason="no kernel here looks back a limited way",
        ),
    ]


@pytest.mark.parametrize(
    ("family", "dtype", "reason"),
    [
        ("Llama", torch.float32, "the element type is torch.float32"),
        (
            "DeepseekV3",
            torch.bfloat16,
            "keys and values of heads are (40, 20) wide, not (192, 128)",
        ),
        ("Llama", torch.bfloat16, "head_dim 16 is not a multiple of 8 from 64 to 256"),
    ],
)
def test_flash_attention_is_not_taken_for_what_it_does_not_compute(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    dtype: torch.dtype,
    reason: str,
) -> None:
    """A kernel that is there still refuses types and shapes."""
    monkeypatch.setattr(backends, "why_not", lambda _needs, _device: None)
    about = backends._Subject(
        device=GPU, dtype=dtype, config=config_of(tmp_path, family), wants_fp8=False
    )
    assert reason == next(backends._why_not_flash(about))
