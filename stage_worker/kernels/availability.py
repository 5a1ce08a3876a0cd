"""Says which kernels this process can use on a device, and why it cannot use the others.

No kernel is imported to find out, so asking is cheap.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import torch

_HOPPER = (9, 0)
_AMPERE = (8, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a kernel cannot do without."""

    package: str
    """That is imported for it."""
    capability: tuple[int, int]
    """Least compute capability."""


TRITON = Needs(package="triton", capability=_AMPERE)
LATENT_DECODE = Needs(package="triton", capability=_HOPPER)
"""Its tiles fill the shared memory of a Hopper GPU."""
FLASH_PREFILL = Needs(package="flash_attn.cute", capability=_HOPPER)
BLOCK_GEMM = Needs(package="deep_gemm", capability=_HOPPER)


def why_not(needs: Needs, device: torch.device) -> str | None:
    """Return why kernels with these needs cannot run on a device, None if they can."""
    if device.type != "cuda":
        return f"the device is {device.type}, not cuda"
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    capability = torch.cuda.get_device_capability(device)
    if capability < needs.capability:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {_text(capability)}, "
            f"{_text(needs.capability)} is needed"
        )
    if not _is_installed(needs.package):
        return f"the package {needs.package} is not installed"
    return None


def _is_installed(package: str) -> bool:
    parent = package.partition(".")[0]
    if importlib.util.find_spec(parent) is None:
        return False
    return parent == package or importlib.util.find_spec(package) is not None


def _text(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
