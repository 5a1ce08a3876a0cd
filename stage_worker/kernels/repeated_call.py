"""Repeats a call of a library's compiled function with other tensors, without its wrapper.

FlashAttention-4's wrapper checks, chooses and looks up for some hundred microseconds at each call.
The layers of a microbatch differ by their tensors only, so what the wrapper called for the first
layer is called directly for the others. Imports no flash_attn, so that it can be tested anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch


class CompiledFunctions(Protocol):
    """Where a wrapper keeps what it compiled."""

    def __getitem__(self, key: Hashable) -> Callable[..., object]:
        """Return a compiled function."""
        ...

    def __setitem__(self, key: Hashable, function: Callable[..., object]) -> None:
        """Keep one."""
        ...

    def __contains__(self, key: Hashable) -> bool:
        """Say whether there is one."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """What a wrapper called, and with what."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]

    def behind(self, tensors: Sequence[torch.Tensor]) -> RepeatedCall | None:
        """Return the call without these tensors; None if it does not begin with them.

        Wrappers pass on views that are the same.
        """
        firsts = self.arguments[: len(tensors)]
        if len(firsts) < len(tensors) or not all(map(_is_same, firsts, tensors)):
            return None
        return RepeatedCall(self.function, self.arguments[len(tensors) :])


@dataclasses.dataclass(frozen=True, slots=True)
class RepeatedCall:
    """A call whose first arguments are still to come."""

    function: Callable[..., object]
    rest: tuple[Any, ...]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Call with tensors of the form that the first ones had."""
        self.function(*tensors, *self.rest)


class RecordedFunctions:
    """Implements CompiledFunctions, and remembers the last call of one of them."""

    def __init__(self, functions: CompiledFunctions) -> None:
        self.last: Call | None = None
        """Holds the call's tensors; its owner clears it."""
        self._functions = functions

    def __getitem__(self, key: Hashable) -> Callable[..., object]:
        """See CompiledFunctions."""
        function = self._functions[key]

        def call(*arguments: Any) -> object:  # noqa: ANN401 whatever the library passes
            self.last = Call(function, arguments)
            return function(*arguments)

        return call

    def __setitem__(self, key: Hashable, function: Callable[..., object]) -> None:
        """See CompiledFunctions."""
        self._functions[key] = function

    def __contains__(self, key: Hashable) -> bool:
        """See CompiledFunctions."""
        return key in self._functions


def _is_same(argument: object, tensor: torch.Tensor) -> bool:
    return (
        isinstance(argument, torch.Tensor)
        and argument.data_ptr() == tensor.data_ptr()
        and argument.shape == tensor.shape
        and argument.stride() == tensor.stride()
    )
