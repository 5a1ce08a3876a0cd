"""Devices of the GPU tests. Without a GPU they are skipped, and say so.

With TRITON_INTERPRET=1 and triton installed the Triton kernels' tests run on the CPU, slowly.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """Return the first GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is visible")
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def triton_device() -> torch.device:
    """Return where Triton kernels run: the first GPU, or the CPU under Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the package triton is not installed")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is visible, and TRITON_INTERPRET is not 1")
    return torch.device("cuda", 0)


@pytest.fixture(params=["one GPU", "two GPUs"])
def devices(request: pytest.FixtureRequest, gpu: torch.device) -> tuple[torch.device, torch.device]:
    """Return where the sender's and the receiver's activations are."""
    if request.param == "one GPU":
        return gpu, gpu
    if torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} CUDA device is visible, 2 are needed")
    return gpu, torch.device("cuda", 1)
