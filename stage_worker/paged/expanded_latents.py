"""Attention of chunks to latents in the expanded form, a few heads at a time.

The latents of a chunk's sequences become the keys and values that each head has of its own, which
costs a tenth of attention behind a long prefix, and makes scores a third as wide as latents are.
All heads at once would take gigabytes, so memory is bounded and heads take turns in it.

Shapes: T rows, H heads, h heads of a turn, p plain and r turned part of a head, q = p + r, v value
width, R latent rank, d = R + r, n keys of all sequences.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stage_worker.kernels.reference import PagedKeysValues
from stage_worker.paged.attention import SequencesAttention
from stage_worker.paged.operations import Operations
from stage_worker.paged.sequences import Sequences

_MOST_NUMBERS = 3 << 28
"""Of keys and values at once: 1.5 GiB in a type of two bytes."""


class ExpandedLatents:
    """Holds what one layer expands with."""

    def __init__(
        self,
        key_up_Hqd: torch.Tensor,
        value_up_HvR: torch.Tensor,
        attention: SequencesAttention,
        operations: Operations,
    ) -> None:
        """Take the way from a latent to each head's whole key, and to its value."""
        self._key_up_Hqd = key_up_Hqd
        self._value_up_HvR = value_up_HvR
        self._attention = attention
        self._take = operations.scratch.take

    def __call__(
        self, q_THq: torch.Tensor, run: Sequences, cache: PagedKeysValues, out_THv: torch.Tensor
    ) -> None:
        """Attend from the rows of a run to all keys of its sequences."""
        latent_nd = self._latents(run, cache)
        for heads in self._turns(len(latent_nd)):
            k_nhq, v_nhv = self._expand(latent_nd, heads)
            q_Thq = q_THq[:, heads].contiguous()
            self._attention(q_Thq, run, k_nhq, v_nhv, out_THv[:, heads])

    def _turns(self, num_keys: int) -> Iterator[slice]:
        """Yield ranges of heads, as equal as can be."""
        num_heads = len(self._key_up_Hqd)
        most = max(1, _MOST_NUMBERS // (num_keys * self._head_numbers))
        num_turns = -(-num_heads // most)
        step = -(-num_heads // num_turns)
        for begin in range(0, num_heads, step):
            yield slice(begin, min(begin + step, num_heads))

    def _expand(self, latent_nd: torch.Tensor, heads: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of some heads, valid until the next ones are made."""
        key_up_hqd, value_up_hvR = self._key_up_Hqd[heads], self._value_up_HvR[heads]
        num_keys, num_heads = len(latent_nd), len(key_up_hqd)
        k_width, v_width = num_heads * key_up_hqd.shape[1], num_heads * value_up_hvR.shape[1]
        size = max(_MOST_NUMBERS, num_keys * self._head_numbers)
        memory = self._take("expanded keys and values", (size,), latent_nd.dtype)
        middle, end = num_keys * k_width, num_keys * (k_width + v_width)
        k_nK = memory[:middle].view(num_keys, k_width)
        v_nV = memory[middle:end].view(num_keys, v_width)
        torch.mm(latent_nd, key_up_hqd.flatten(0, 1).t(), out=k_nK)
        rank = value_up_hvR.shape[2]
        torch.mm(latent_nd[:, :rank], value_up_hvR.flatten(0, 1).t(), out=v_nV)
        return k_nK.view(num_keys, num_heads, -1), v_nV.view(num_keys, num_heads, -1)

    @property
    def _head_numbers(self) -> int:
        """Numbers of a key and a value of one head."""
        return self._key_up_Hqd.shape[1] + self._value_up_HvR.shape[1]

    def _latents(self, run: Sequences, cache: PagedKeysValues) -> torch.Tensor:
        """Gather the latents of all sequences behind one another.

        What lies behind the last key in a page is overwritten by the next sequence.
        """
        page_tokens, width = cache.page_tokens, cache.k_PNKd.shape[3]
        num_keys = sum(run.key_counts)
        capacity = 1 << (num_keys + page_tokens - 1).bit_length()
        memory_nd = self._take("latents", (capacity, width), cache.k_PNKd.dtype)
        begin = 0
        for index, own_keys in enumerate(run.key_counts):
            num_pages = -(-own_keys // page_tokens)
            own_nd = memory_nd[begin : begin + num_pages * page_tokens]
            torch.index_select(
                cache.k_PNKd,
                0,
                run.contexts.page_table_Bp[index, :num_pages],
                out=own_nd.view(num_pages, page_tokens, 1, width),
            )
            begin += own_keys
        return memory_nd[:num_keys]
