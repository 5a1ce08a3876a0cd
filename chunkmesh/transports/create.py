"""Makes the transport that a setting names. ucxx is imported only when it is asked for."""

from __future__ import annotations

import importlib
import os

import torch

from chunkmesh.errors import ConfigError
from chunkmesh.transports.base import Transport
from chunkmesh.transports.grpc_stream import GrpcTransport
from chunkmesh.transports.memory import MemoryNetwork, MemoryTransport
from chunkmesh.trust.tls_files import TlsFiles

NAMES = ("ucx", "grpc", "memory")
_CPU = torch.device("cpu")


def create(
    name: str,
    address: str,
    *,
    network: MemoryNetwork | None = None,
    device: torch.device = _CPU,
    tls: TlsFiles | None = None,
) -> Transport:
    """Return a transport that will listen at address; network is for memory only.

    device is where activations are; tls protects the links of grpc, and no others.

    Raises:
        ConfigError: no such transport, or its packages are missing.
    """
    if name == "grpc":
        return GrpcTransport(address, tls=tls)
    if name == "memory" and network is not None:
        return MemoryTransport(network, address)
    if name != "ucx":
        raise ConfigError(f"no transport {name!r}; known: {', '.join(NAMES)}")
    _set_ucx_defaults(device)
    try:
        ucx = importlib.import_module("chunkmesh.transports.ucx")
    except ImportError as error:
        raise ConfigError(f"transport ucx needs the package ucxx: {error}; use grpc") from error
    transport: Transport = ucx.UcxTransport(address, device=device)
    return transport


def _set_ucx_defaults(device: torch.device) -> None:
    """Set what UCX and ucxx read from the environment when they are loaded; the user's wins."""
    # Without a GPU it would warn of a variable that ucxx itself sets.
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
    if device.type == "cpu":
        # Receives are posted ahead, so a rendezvous (ucxx: from 8 KiB) would only add a round trip.
        os.environ.setdefault("UCX_RNDV_THRESH", "1M")
