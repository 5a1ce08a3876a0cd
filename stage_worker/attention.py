"""Exact attention on the CPU over keys that lie in several pieces.

Every piece is attended to on its own and the results are merged by their log-sum-exp, so a chunk
sees its prefix without a mask and itself with a causal one, and cached pages are read in place.
torch's flash kernel reads grouped heads directly; queries of one group are stacked where no mask
is needed, which makes its matrices larger. Attention is float32 whatever the pool holds: pages of
narrow types are widened piece by piece, and only what was attended to is rounded.

Shapes: T query rows, H query heads, K kv heads, G = H / K, n keys, d head_dim.
Source: https://arxiv.org/abs/2205.14135 and https://arxiv.org/abs/2402.05099 (merging)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from stage_worker.batch import Context, Part
from stage_worker.kv_pool import ContextReader, KeysValues, KvPool
from stage_worker.workspace import Buffers

Partial = tuple[torch.Tensor, torch.Tensor]
"""Attention over a part of the keys: output [1, H, T, d] and log-sum-exp [1, H, T]."""

TILE_ROWS = 128
_PIECE_NUMBERS = 1 << 20
"""Most keys, in numbers, that are widened at once."""

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 the public call hides the log-sum-exp


def merge(partials: Iterable[Partial]) -> Partial:
    """Return the attention over all keys of partials together."""
    each = iter(partials)
    out, lse = next(each)
    for other_out, other_lse in each:
        weight = torch.sigmoid(other_lse - lse)
        out = torch.lerp(out, other_out, weight.unsqueeze(-1))
        lse = torch.logaddexp(lse, other_lse)
    return out, lse


def wide(segments: Iterable[KeysValues]) -> Iterator[KeysValues]:
    """Yield the same keys and values in float32, long narrow ones in several pieces."""
    for k, v in segments:
        if k.dtype == torch.float32:
            yield k, v
            continue
        num_tokens = max(1, _PIECE_NUMBERS // (k.shape[1] * k.shape[3]))
        for begin in range(0, k.shape[2], num_tokens):
            tokens = slice(begin, begin + num_tokens)
            wide_k = k[:, :, tokens].float()
            yield wide_k, wide_k if v is k else v[:, :, tokens].float()


def attend_all(
    q_1HTd: torch.Tensor, keys_values: KeysValues, scale: float | None = None
) -> Partial:
    """Attend from dense queries to keys that all of them see.

    Scores are multiplied by scale; None is one over the root of d.
    """
    k, v = keys_values
    out, lse = flash(q_1HTd.view(1, k.shape[1], -1, k.shape[3]), k, v, scale=scale)
    return out.reshape(q_1HTd.shape), lse.reshape(q_1HTd.shape[:3])


def attend_causal(
    q_1HTd: torch.Tensor, keys_values: KeysValues, scale: float | None = None
) -> Partial:
    """Attend from queries to the keys of the same tokens, each to itself and those before.

    The kernel masks what it has computed; cut into tiles, most of that is not computed.
    """
    k, v = keys_values
    partials = []
    for begin in range(0, q_1HTd.shape[2], TILE_ROWS):
        rows = slice(begin, begin + TILE_ROWS)
        tile = q_1HTd[:, :, rows].contiguous()
        parts: list[Partial] = [
            flash(tile, k[:, :, rows], v[:, :, rows], is_causal=True, scale=scale)
        ]
        if begin:
            parts.append(attend_all(tile, (k[:, :, :begin], v[:, :, :begin]), scale))
        partials.append(merge(parts))
    if len(partials) == 1:
        return partials[0]
    outs, lses = zip(*partials, strict=True)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


class TokenQueries:
    """One query row, which sees all of its context: a decode step."""

    def __init__(self, row: int, context: Context, buffers: Buffers, pool: KvPool) -> None:
        num_kv_heads, head_dim = buffers.k_1KTd.shape[1], buffers.k_1KTd.shape[3]
        shape = (1, num_kv_heads, -1, head_dim)
        self._q_1KGd = buffers.q_THd[row].view(shape)
        self._out_1KGd = buffers.attended_THd[row].view(shape)
        self._context = ContextReader(pool, context)

    def attend(self, layer: int) -> None:
        """Attend in one layer (index in the stage), from the buffers' q to their attended."""
        q = self._q_1KGd.float()
        segments = wide(self._context.segments(layer))
        self._out_1KGd.copy_(merge(flash(q, k, v) for k, v in segments)[0])


class ChunkQueries:
    """The query rows of a prefill chunk: all of the context, and each other causally."""

    def __init__(self, part: Part, buffers: Buffers, pool: KvPool) -> None:
        rows = slice(part.first_row, part.first_row + part.num_rows)
        self._q_1HTd = buffers.q_THd[rows].transpose(0, 1)[None]
        self._out_1HTd = buffers.attended_THd[rows].transpose(0, 1)[None]
        self._own: KeysValues = (buffers.k_1KTd[:, :, rows], buffers.v_1KTd[:, :, rows])
        self._context = None if part.context is None else ContextReader(pool, part.context)

    def attend(self, layer: int) -> None:
        """Attend in one layer (index in the stage), from the buffers' q to their attended."""
        self._out_1HTd.copy_(merge(self._partials(layer))[0])

    def _partials(self, layer: int) -> Iterator[Partial]:
        """Attend to the chunk itself, then to what lies before it."""
        q_1HTd = self._q_1HTd.contiguous().float()
        k_1KTd, v_1KTd = self._own
        yield attend_causal(q_1HTd, (k_1KTd.float(), v_1KTd.float()))
        if self._context is not None:
            for keys_values in wide(self._context.segments(layer)):
                yield attend_all(q_1HTd, keys_values)
