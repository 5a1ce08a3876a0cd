"""What a wrapper called once is called again with other tensors, if it is what was expected."""

from __future__ import annotations

from typing import Any

import torch

from stage_worker.kernels.repeated_call import RecordedFunctions

Q, K, OUT, TABLE = (torch.zeros(size, 4) for size in (3, 5, 3, 2))


class Library:
    """Keeps compiled functions as a library does, and calls one through a wrapper."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.recorded = RecordedFunctions({"kernel": self._run})

    def _run(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def wrapper(self, q: torch.Tensor, k: torch.Tensor, out: torch.Tensor) -> None:
        """Call what was compiled with views of the tensors, and more."""
        assert "kernel" in self.recorded
        self.recorded["kernel"](q.detach(), k.detach(), out.detach(), 0.5, TABLE, None)


def test_a_call_is_repeated_with_other_tensors() -> None:
    """Layers differ by their tensors; what the wrapper chose stays."""
    library = Library()
    library.wrapper(Q, K, OUT)
    call = library.recorded.last
    assert call is not None
    repeated = call.behind((Q, K, OUT))
    assert repeated is not None
    q, k, out = Q.clone(), K.clone(), OUT.clone()
    repeated(q, k, out)
    tensors, rest = library.calls[1][:3], library.calls[1][3:]
    assert all(mine is its for mine, its in zip((q, k, out), tensors, strict=True))
    assert rest == (0.5, TABLE, None)


def test_other_arguments_are_not_taken_for_the_tensors() -> None:
    """A new version of the library may order, copy or reshape them: then nothing is repeated."""
    library = Library()
    library.wrapper(Q, K, OUT)
    call = library.recorded.last
    assert call is not None
    assert call.behind((K, Q, OUT)) is None
    assert call.behind((Q.clone(), K, OUT)) is None
    assert call.behind((Q.view(4, 3), K, OUT)) is None
    assert call.behind((Q, K, OUT, TABLE)) is None
    assert call.behind((Q,) * 7) is None


def test_functions_are_compiled_into_the_library_s_own_place() -> None:
    """It must not compile anew what it has, nor lose what it compiles."""
    functions: dict[Any, Any] = {}
    recorded = RecordedFunctions(functions)
    assert "kernel" not in recorded
    recorded["kernel"] = print
    assert functions == {"kernel": print}
    assert "kernel" in recorded
