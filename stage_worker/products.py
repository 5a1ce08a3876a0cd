"""Matrix products on the CPU, of any element type.

Sums are float32 and rounded once, to what they are written to. Without instructions for narrow
types a CPU multiplies those 10 to 100 times slower than float32, so it widens weights first, block
by block: a block stays in the cache, and is widened once for all rows. One row gains nothing from
that, as long as each output's weights lie side by side, which merge_outputs sees to.

Shapes: T rows, K input and N output width, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

_BLOCK_NUMBERS = 1 << 20
_LEAST_COLUMNS = 64


def _types_of_this_cpu() -> frozenset[torch.dtype]:
    types = {torch.float32}
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return frozenset(types)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001 no public call tells
        types.add(torch.bfloat16)
    if torch.ops.mkldnn._is_mkldnn_fp16_supported():  # noqa: SLF001 no public call tells
        types.add(torch.float16)
    return frozenset(types)


_FAST_TYPES = _types_of_this_cpu()


def multiply(x_TK: torch.Tensor, w_KN: torch.Tensor, out_TN: torch.Tensor) -> None:
    """Write x @ w to out_TN, which is float32 or has the type of x and w."""
    dtype = w_KN.dtype
    if out_TN.dtype == dtype and (dtype in _FAST_TYPES or len(x_TK) == 1):
        torch.mm(x_TK, w_KN, out=out_TN)
        return
    for columns, sums_Tn in _by_block(x_TK, w_KN):
        out_TN[:, columns].copy_(sums_Tn)


def product(x_TK: torch.Tensor, w_KN: torch.Tensor) -> torch.Tensor:
    """Return x @ w in their type, in fresh memory."""
    out_TN = torch.empty(len(x_TK), w_KN.shape[1], dtype=w_KN.dtype)
    multiply(x_TK, w_KN, out_TN)
    return out_TN


def add_product(total_TN: torch.Tensor, x_TK: torch.Tensor, w_KN: torch.Tensor) -> None:
    """Add x @ w to total_TN; all have one type."""
    dtype = w_KN.dtype
    if dtype in _FAST_TYPES or len(x_TK) == 1:
        total_TN.addmm_(x_TK, w_KN)
        return
    for columns, sums_Tn in _by_block(x_TK, w_KN):
        total_TN[:, columns].add_(sums_Tn)


def products_by_head(x_HTK: torch.Tensor, w_HKN: torch.Tensor) -> torch.Tensor:
    """Return each head's x @ w in their type, in fresh memory."""
    if w_HKN.dtype in _FAST_TYPES:
        return torch.bmm(x_HTK, w_HKN)
    num_heads, num_rows, _ = x_HTK.shape
    out_HTN = torch.empty(num_heads, num_rows, w_HKN.shape[2], dtype=w_HKN.dtype)
    step = max(1, _BLOCK_NUMBERS // w_HKN[0].numel())
    for begin in range(0, num_heads, step):
        some = slice(begin, begin + step)
        out_HTN[some].copy_(torch.bmm(x_HTK[some].float(), w_HKN[some].float()))
    return out_HTN


def _by_block(x_TK: torch.Tensor, w_KN: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield columns of x @ w and their sums, float32."""
    num_inputs, num_outputs = w_KN.shape
    wide_TK = x_TK.float()
    step = max(_LEAST_COLUMNS, _BLOCK_NUMBERS // num_inputs)
    for begin in range(0, num_outputs, step):
        columns = slice(begin, begin + step)
        yield columns, wide_TK @ w_KN[:, columns].float()
