"""Launches a Triton kernel that was launched before without binding its arguments anew.

Triton finds the compiled kernel by names, types, divisibility and options at every launch, which
takes the host longer than many kernels take a GPU. Here it is found by what of the arguments it was
compiled for. Imports no triton, so that it can be tested anywhere.
Source: https://github.com/triton-lang/triton (runtime/jit.py, compiler/compiler.py of 3.6)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

import torch

Grid = tuple[int, int, int]
Argument = torch.Tensor | float
_ALIGNMENT = 16
"""Of pointers, that kernels are compiled for."""
_INT32 = 1 << 31


class Compiled(Protocol):
    """A compiled kernel; it is called with all arguments by position, constants included."""

    def __getitem__(self, grid: Grid) -> object:
        """Return what launches it on the current stream."""
        ...


class KernelLaunch:
    """What was compiled of one kernel; for one thread."""

    def __init__(self, kernel: object, *, varying: frozenset[int] = frozenset()) -> None:
        """Take a kernel and the places of whole numbers that it is not specialised for."""
        self._kernel = kernel
        self._varying = varying
        self._compiled: dict[Hashable, Compiled] = {}

    def __call__(
        self,
        grid: Grid,
        arguments: tuple[Argument, ...],
        constants: Mapping[str, object],
        **options: int,
    ) -> None:
        """Launch; constants, in the kernel's order, come behind the arguments."""
        form = (
            arguments[0].device if isinstance(arguments[0], torch.Tensor) else None,
            *map(self._form, arguments, range(len(arguments))),
            *constants.values(),
            *options.values(),
        )
        compiled = self._compiled.get(form)
        if compiled is not None:
            compiled[grid](*arguments, *constants.values())  # type: ignore[operator]
            return
        launched = self._kernel[grid](*arguments, **constants, **options)  # type: ignore[index]
        if launched is not None:  # the interpreter compiles nothing
            self._compiled[form] = launched

    def _form(self, argument: Argument, place: int) -> Hashable:
        """Return what of an argument a kernel is compiled for."""
        if isinstance(argument, torch.Tensor):
            return argument.dtype, argument.data_ptr() % _ALIGNMENT == 0
        if isinstance(argument, float):
            return float
        return argument < _INT32 if place in self._varying else argument
