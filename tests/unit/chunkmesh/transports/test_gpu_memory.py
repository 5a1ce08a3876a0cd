"""What links check about GPU memory; none of it needs a GPU."""

from __future__ import annotations

import prometheus_client
import pytest
import torch

from chunkmesh.errors import ConfigError
from chunkmesh.transports import gpu_memory

GPU = torch.device("cuda", 0)


def links_through_host() -> float:
    """Return what the metric says."""
    name = "chunkmesh_gpu_links_through_host_total"
    return prometheus_client.REGISTRY.get_sample_value(name) or 0.0


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_memory_that_cannot_be_shared_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """With such segments cuda_ipc fails late and silently; the setting has to be named at start."""
    monkeypatch.setenv(variable, "max_split_size_mb:64, expandable_segments:True")
    with pytest.raises(ConfigError, match=f"{variable}.*expandable_segments"):
        gpu_memory.enter(GPU)


def test_a_cpu_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting of another process's GPU must not stop a worker without one."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    gpu_memory.enter(torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "transport", "counted"),
    [
        (GPU, "tcp", 1),
        (GPU, "sysv+cma+cuda_copy+tcp", 1),
        (GPU, "grpc", 1),
        (GPU, "ucx", 1),
        (GPU, "sysv+cuda_copy+cuda_ipc+tcp", 0),
        (GPU, "rc_mlx5+cuda_copy", 0),
        (torch.device("cpu"), "tcp", 0),
    ],
)
def test_a_way_through_the_host_is_counted(
    device: torch.device, transport: str, counted: int
) -> None:
    """UCX falls back to TCP silently, and a mesh would be slow without anybody knowing why."""
    before = links_through_host()
    gpu_memory.report_path(device, transport)
    assert counted == links_through_host() - before
