"""Chooses the element type of a stage's weights, activations and pages, and says what it costs."""

from __future__ import annotations

from typing import Literal

import structlog
import torch

_log = structlog.get_logger(__name__)

DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
"""auto is the model's own type."""

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_COSTS = {
    torch.bfloat16: "8 significant bits are left",
    torch.float16: "larger values than 65504 become infinite, and then every answer is nonsense",
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type as config.json, page records and logs have it."""
    return str(dtype).removeprefix("torch.")


def choose_dtype(asked: DtypeChoice, *, own: torch.dtype, declared: str | None) -> torch.dtype:
    """Return the type to compute in; log it, and warn if the model was made for another.

    own is the type that the model was made for, declared what config.json states of it. float32
    holds every value of the others, so it needs no warning.
    """
    dtype = own if asked == "auto" else DTYPES[asked]
    _log.info("dtype chosen", dtype=dtype_name(dtype), declared=declared, asked=asked)
    if dtype not in {own, torch.float32}:
        _log.warning(
            "dtype is not the model's own",
            dtype=dtype_name(dtype),
            model_dtype=dtype_name(own),
            why=_COSTS[dtype],
        )
    return dtype
