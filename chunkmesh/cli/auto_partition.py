"""`--partition auto`: the split that `chunkmesh plan` finds best for a model.

Planning is the scheduler's code, which the command line does not import: the planner runs as a
program of its own, as the services of a mesh do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
from pydantic import BaseModel

from chunkmesh.cli.exits import EXIT_USAGE
from chunkmesh.cli.partition import Partition, parse_ranges
from chunkmesh.errors import ConfigError, InvariantViolated
from chunkmesh.layers import LayerRange

_log = structlog.get_logger(__name__)

_LATENCY_FLAG = "--latency-model"
_LATENCY_VARIABLE = "CHUNKMESH_LATENCY_MODEL"
_PRODUCTS = "products"
"""What `chunkmesh plan` calls the latency that needs no measurement of a device."""
_PROMPT_TOKENS = 4096
"""Longer prompts add attention, of which every layer has about the same."""
_NUM_PROMPTS = 4
_TIMEOUT_S = 120.0


class _Plan(BaseModel):
    """What is read of a plan."""

    layers: list[str]
    finish_ms: float


class _Latency(BaseModel):
    """What is read of a plan's latency."""

    origin: str


class _Answer(BaseModel):
    """What is read of the planner's answer; plans has one."""

    plans: list[_Plan]
    latency: _Latency


def auto_ranges(
    model_path: Path, *, num_stages: int, scheduler_flags: Sequence[str]
) -> tuple[LayerRange, ...]:
    """Return the layers of each stage so that the slowest stage is as fast as can be.

    By the latency that the scheduler will plan with, if it is given a file of it. Logs what was
    taken, and why; takes some seconds.

    Raises:
        ConfigError: the model cannot be split so, or its config.json does not say what layers are.
    """
    latency = _latency_model(scheduler_flags)
    even, auto = (
        _plan(
            "--model",
            str(model_path),
            "--stages",
            str(num_stages),
            _LATENCY_FLAG,
            latency,
            "--partition",
            partition.value,
        )
        for partition in (Partition.EVEN, Partition.AUTO)
    )
    even_plan, auto_plan = even.plans[0], auto.plans[0]
    gain = 1 - auto_plan.finish_ms / even_plan.finish_ms
    is_even = auto_plan.layers == even_plan.layers
    _log.info(
        "layers split",
        partition=Partition.AUTO.value,
        layers=",".join(auto_plan.layers),
        even=",".join(even_plan.layers),
        reason="no split is faster than the even one"
        if is_even
        else f"prompts are through {gain:.1%} sooner than with the even split",
        prompt_tokens=_PROMPT_TOKENS,
        by=auto.latency.origin,
    )
    return parse_ranges(",".join(auto_plan.layers))


def _latency_model(scheduler_flags: Sequence[str]) -> str:
    """Return the file that the scheduler is told to plan with, or what needs none."""
    found = os.environ.get(_LATENCY_VARIABLE) or _PRODUCTS
    for index, word in enumerate(scheduler_flags):
        name, is_joined, value = word.partition("=")
        if name == _LATENCY_FLAG:
            found = value if is_joined else "".join(scheduler_flags[index + 1 : index + 2])
    return found


def _plan(*words: str) -> _Answer:
    """Plan prompts in a row, on stages and links that take nothing beside the layers."""
    fixed = {
        "--tokens": _PROMPT_TOKENS,
        "--num-requests": _NUM_PROMPTS,
        "--strategy": "optimal",
        "--overhead-ms": 0,
        "--link-latency-us": 0,
        "--link-gbps": 1_000_000,
    }
    command = [sys.executable, "-P", "-m", "chunkmesh.cli", "plan", "--json", *words]
    command += [word for flag, value in fixed.items() for word in (flag, str(value))]
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"--partition auto: no answer within {_TIMEOUT_S:g} s; name the --layers"
        ) from error
    if done.returncode == EXIT_USAGE:
        complaint = done.stderr.strip().removeprefix("chunkmesh: ")
        raise ConfigError(f"--partition auto: {complaint}")
    if done.returncode:
        raise InvariantViolated(f"chunkmesh plan ended with {done.returncode}: {done.stderr}")
    return _Answer.model_validate_json(done.stdout)
