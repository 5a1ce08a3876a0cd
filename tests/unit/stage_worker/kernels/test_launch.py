"""What was compiled for some arguments is launched again for others of the same form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stage_worker.kernels.launch import Argument, KernelLaunch

GRID = (3, 2, 1)
X, Y = torch.zeros(4, 8), torch.ones(4, 8)


class FakeKernel:
    """Compiles as Triton does: an object that launches by position, or nothing if interpreted."""

    def __init__(self, *, is_interpreted: bool = False) -> None:
        self.bound: list[tuple[Any, ...]] = []
        """Grid and arguments of launches that were bound by name."""
        self.direct: list[tuple[Any, ...]] = []
        """The same of others."""
        self._is_interpreted = is_interpreted

    def __getitem__(self, grid: Any) -> Any:
        """Return what compiles and launches."""

        def run(*arguments: Any, **named: Any) -> Any:
            self.bound.append((grid, *arguments, named))
            return None if self._is_interpreted else _Compiled(self)

        return run


class _Compiled:
    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments: self._kernel.direct.append((grid, *arguments))


def launch(kernel: FakeKernel, *calls: tuple[Argument, ...], varying: int | None = None) -> None:
    """Launch with some arguments after others."""
    launch = KernelLaunch(kernel, varying=frozenset(() if varying is None else (varying,)))
    for arguments in calls:
        launch(GRID, arguments, {"WIDTH": 8, "HAS": True}, num_warps=4)


def test_the_second_launch_is_direct() -> None:
    """Binding took the host longer than the kernel took the GPU; arguments may be others."""
    kernel = FakeKernel()
    launch(kernel, (X, 0.5, 7), (Y, 0.25, 7))
    assert kernel.bound == [(GRID, X, 0.5, 7, {"WIDTH": 8, "HAS": True, "num_warps": 4})]
    [(grid, tensor, *others)] = kernel.direct
    assert tensor is Y
    assert [grid, *others] == [GRID, 0.25, 7, 8, True]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((X, 1.0, 7), (X, 1.0, 8)),
        ((X, 1.0, 7), (X.double(), 1.0, 7)),
        ((X, 1.0, 7), (X.view(-1)[1:], 1.0, 7)),
    ],
)
def test_another_form_is_compiled_anew(
    first: tuple[Argument, ...], second: tuple[Argument, ...]
) -> None:
    """Kernels are specialised for types, aligned pointers and whole numbers."""
    kernel = FakeKernel()
    launch(kernel, first, second)
    assert len(kernel.bound) == 2
    assert kernel.direct == []


def test_numbers_that_vary_compile_nothing() -> None:
    """Page tables grow; but what does not fit 32 bits is another type."""
    kernel = FakeKernel()
    launch(kernel, (X, 7), (X, 8), (X, 1 << 40), varying=1)
    assert [numbers[2] for numbers in kernel.bound] == [7, 1 << 40]
    assert [numbers[2] for numbers in kernel.direct] == [8]


def test_the_interpreter_is_asked_every_time() -> None:
    """It compiles nothing that could be kept."""
    kernel = FakeKernel(is_interpreted=True)
    launch(kernel, (X, 7), (X, 7))
    assert len(kernel.bound) == 2
