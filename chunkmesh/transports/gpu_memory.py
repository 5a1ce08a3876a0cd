"""What links must know of GPU memory: whose context, what can be shared, who reaches it directly.

UCX copies GPU memory through the host where it finds no better way, and says nothing; here that is
noticed.
"""

from __future__ import annotations

import os

import structlog
import torch
from prometheus_client import Counter

from chunkmesh.errors import ConfigError

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_DIRECT = ("cuda_ipc", "rc", "dc", "ud", "srd", "gga", "memory")
"""Beginnings of the names of transports that read and write GPU memory without the host's."""
_LINKS_THROUGH_HOST = Counter(
    "chunkmesh_gpu_links_through_host", "Links that copy activations of a GPU through host memory."
)
_log = structlog.get_logger(__name__)


def enter(device: torch.device) -> None:
    """Make this thread, which drives the network, work in the device's context.

    Raises:
        ConfigError: the device's memory would be such that no other process can map it.
    """
    if device.type != "cuda":
        return
    for variable in _ALLOCATOR_VARIABLES:
        if "expandable_segments:true" in os.environ.get(variable, "").replace(" ", "").lower():
            raise ConfigError(
                f"{variable} has expandable_segments:True: other processes cannot map such "
                "memory, so activations would go through the host; set it to False"
            )
    torch.cuda.set_device(device)
    torch.cuda.current_stream(device).synchronize()  # makes the context


def report_path(device: torch.device, transport: str) -> None:
    """Warn and count if a new link sends a GPU's activations through host memory.

    transport is what its endpoint really uses, joined by +.
    """
    if device.type != "cuda" or any(name.startswith(_DIRECT) for name in transport.split("+")):
        return
    _LINKS_THROUGH_HOST.inc()
    _log.warning(
        "activations of a GPU go through host memory", transport=transport, device=str(device)
    )
