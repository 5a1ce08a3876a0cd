"""What the machine itself gives, beside every bench: its steadiness, and what two processes gain.

Virtual cores may share one real core. Then two processes together do little more than one alone,
and no pipeline can be faster than that.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch

_WORK_S = 0.5
_ROUNDS = 5
NOISY = 0.15
"""Spread of a calibration loop above which figures are not judged."""


def describe() -> str:
    """Return cores, processor, Python and commit, for a table's caption."""
    return f"{hardware()}, commit {commit()}"


def commit() -> str:
    """Return the short name of the commit that is checked out."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()


def hardware() -> str:
    """Return cores, processor and Python."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor()
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


def calibrate() -> str:
    """Measure the machine for some seconds; return a sentence for the reader of the figures."""
    with _workers(2) as workers:
        alone, together = [], []
        for _ in range(_ROUNDS):
            alone.append(sum(_rates(workers[:1])))
            together.append(sum(_rates(workers)))
    spread = max(alone) / min(alone) - 1
    gains = [both / one for both, one in zip(together, alone, strict=True)]
    verdict = "noisy, not judged" if spread > NOISY else "steady"
    return (
        f"machine: one process varies by {spread:.0%} ({verdict}); two at once do "
        f"{min(gains):.2f}-{max(gains):.2f} x the matrix products of one"
    )


def _rates(workers: list[Connection]) -> list[float]:
    """Let workers multiply at the same time; return each one's products per second."""
    for worker in workers:
        worker.send("work")
    return [worker.recv() for worker in workers]


@contextmanager
def _workers(number: int) -> Iterator[list[Connection]]:
    """Run processes that multiply matrices on demand."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(number)]
    processes = [context.Process(target=_multiply, args=(pipe[1],)) for pipe in pipes]
    for process in processes:
        process.start()
    ends = [pipe[0] for pipe in pipes]
    _rates(ends)
    yield ends
    for end in ends:
        end.send("")
    for process in processes:
        process.join()


def _multiply(orders: Connection) -> None:
    """Multiply for a while at each order, on one thread; shapes as in a chunk of the demo model."""
    torch.set_num_threads(1)
    rows_TD, weight_DN = torch.randn(256, 576), torch.randn(576, 3072)
    while orders.recv():
        begin = time.perf_counter()
        number = 0
        while time.perf_counter() < begin + _WORK_S:
            torch.mm(rows_TD, weight_DN)
            number += 1
        orders.send(number / (time.perf_counter() - begin))
