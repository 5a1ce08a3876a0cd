"""Which GPUs the stage workers of a mesh on this machine use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

from chunkmesh.errors import ConfigError

DeviceKind = Literal["auto", "cpu", "cuda"]
_DEV = Path("/dev")
_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
_COUNT_S = 120


def stage_devices(kind: DeviceKind, listed: str | None) -> tuple[str, ...]:
    """Return the devices that stages take in turn; empty leaves it to each worker.

    listed is such as 0,1: indices of GPUs.

    Raises:
        ConfigError: the flags contradict each other, or there is no such GPU.
    """
    if listed is not None:
        if kind == "cpu":
            raise ConfigError(f"--devices {listed} contradicts --device cpu")
        if not re.fullmatch(r"\d+(,\d+)*", listed):
            raise ConfigError(f"--devices {listed}: indices of GPUs, such as 0,1")
        return tuple(f"cuda:{int(index)}" for index in listed.split(","))
    if kind == "cpu":
        return ("cpu",)
    # Where no driver is, which is most machines, torch need not be asked.
    has_driver = any(_DEV.glob("nvidia*"))
    num_gpus = _count() if has_driver or kind == "cuda" else 0
    if kind == "cuda" and num_gpus == 0:
        raise ConfigError("--device cuda: torch sees no GPU here")
    return tuple(f"cuda:{index}" for index in range(num_gpus))


def _count() -> int:
    """Ask torch, in a process of its own: this one must not load it."""
    asked = subprocess.run(  # noqa: S603 our own Python
        [sys.executable, "-c", _COUNT],
        capture_output=True,
        text=True,
        timeout=_COUNT_S,
        check=False,
    )
    return int(asked.stdout) if asked.returncode == 0 else 0
