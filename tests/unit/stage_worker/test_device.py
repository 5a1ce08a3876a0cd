"""The device of a stage, where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from chunkmesh.errors import ConfigError
from stage_worker.device import choose_device


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch see no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("asked", ["auto", "cpu"])
def test_without_gpus_the_cpu_computes(asked: str) -> None:
    """Nothing needs to be said on most machines."""
    assert torch.device("cpu") == choose_device(asked)


@pytest.mark.parametrize("asked", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_refused(asked: str) -> None:
    """A worker that was told a GPU must not compute on a CPU instead, a thousand times slower."""
    with pytest.raises(ConfigError, match=rf"--device {asked}: torch .* sees 0 GPUs"):
        choose_device(asked)
