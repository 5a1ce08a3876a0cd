"""Chooses the device of a stage's weights, pages and activations."""

from __future__ import annotations

import structlog
import torch

from chunkmesh.errors import ConfigError

_log = structlog.get_logger(__name__)


def choose_device(asked: str) -> torch.device:
    """Return the device that is asked for; auto is the first GPU, or the CPU where there is none.

    Raises:
        ConfigError: it is not there.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cpu" or (asked == "auto" and num_gpus == 0):
        return torch.device("cpu")
    index = 0 if asked in {"auto", "cuda"} else int(asked.partition(":")[2])
    if index >= num_gpus:
        raise ConfigError(f"--device {asked}: torch {torch.__version__} sees {num_gpus} GPUs")
    device = torch.device("cuda", index)
    _log.info("device chosen", device=str(device), name=torch.cuda.get_device_name(device))
    return device
