"""Where compiled kernels are kept on disk, so that the next start of any stage finds them.

Libraries read their folder from the environment when they are first used; what is set there
already, stays.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)
_FOLDERS = {"TRITON_CACHE_DIR": "triton", "DG_JIT_CACHE_DIR": "deep_gemm"}


def use_kernel_cache(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let the libraries that compile kernels keep them under a folder; before any is imported."""
    for variable, name in _FOLDERS.items():
        environment.setdefault(variable, str(folder / name))
        Path(environment[variable]).mkdir(parents=True, exist_ok=True)
    _log.info("kernels are kept", folders=[environment[variable] for variable in _FOLDERS])
