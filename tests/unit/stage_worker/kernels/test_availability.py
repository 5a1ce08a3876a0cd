"""Why a kernel cannot be used, in words for a log line."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from stage_worker.kernels.availability import BLOCK_GEMM, FLASH_PREFILL, TRITON, Needs, why_not

GPU = torch.device("cuda", 0)
NEEDS = [TRITON, FLASH_PREFILL, BLOCK_GEMM]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there is an H200."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")


@pytest.mark.parametrize("needs", NEEDS)
def test_a_cpu_has_none(needs: Needs) -> None:
    """The CPU's path is chosen for a reason that can be told."""
    assert why_not(needs, torch.device("cpu")) == "the device is cpu, not cuda"


@pytest.mark.parametrize("needs", NEEDS)
def test_no_gpu_has_none(monkeypatch: pytest.MonkeyPatch, needs: Needs) -> None:
    """A missing driver is not a missing package."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_not(needs, GPU) == "no CUDA device is visible"


def test_an_old_gpu_is_named(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user learns which card it is and what the kernel asks for."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    assert why_not(FLASH_PREFILL, GPU) == ("NVIDIA H200 has compute capability 8.6, 9.0 is needed")


def test_a_missing_package_is_named(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is one install away."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert why_not(FLASH_PREFILL, GPU) == "the package flash_attn.cute is not installed"


def test_nothing_is_missing(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no reason."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert [None, None, None] == [why_not(needs, GPU) for needs in NEEDS]
