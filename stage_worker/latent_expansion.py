"""Turns cached latents into the keys and values that each head has of its own.

Shapes: n tokens, t rows, H heads, d width of the cache, R latent rank, p plain and r turned part
of a head, v value width, E width of expanded keys and values, zero where they are narrower.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

import math

import torch

from stage_worker.kv_pool import KeysValues
from stage_worker.latent_config import LatentConfig


class ExpansionMemory:
    """Owner of the memory of expanded keys and values; grows to the largest piece seen.

    They are float32 whatever the type of the latents, as all that attention computes with.
    """

    def __init__(self, num_heads: int, width: int) -> None:
        self._shape = (1, num_heads, 0, width)
        self._empty = torch.empty(self._shape)
        self._keys_values: KeysValues = (self._empty, self._empty)

    def take(self, num_tokens: int) -> KeysValues:
        """Return keys and values, each [1, H, n, E], in the same memory each time.

        Columns that nobody writes are zero.
        """
        if self._keys_values[0].shape[2] < num_tokens:
            self._keys_values = (self._empty, self._empty)  # frees the old ones first
            shape = (*self._shape[:2], num_tokens, self._shape[3])
            self._keys_values = (self._empty.new_zeros(shape), self._empty.new_zeros(shape))
        k, v = self._keys_values
        return k[:, :, :num_tokens], v[:, :, :num_tokens]


class LatentExpansion:
    """Holds what one layer expands with."""

    def __init__(
        self, key_up_HpR: torch.Tensor, value_up_HRv: torch.Tensor, config: LatentConfig
    ) -> None:
        self._key_up_HRp = key_up_HpR.transpose(1, 2)
        self._value_up_HRv = value_up_HRv
        self._config = config
        self.scale = 1 / math.sqrt(config.cached_dim)
        """For scores: queries are made for the absorbed form, where attention divides by this."""

    def queries(self, plain_tHp: torch.Tensor, turned_tHr: torch.Tensor) -> torch.Tensor:
        """Lay queries out as the keys are, [1, H, t, E], dense and float32."""
        num_rows, num_heads, plain = plain_tHp.shape
        full = plain + turned_tHr.shape[2]
        q_HtE = torch.empty(num_heads, num_rows, self._config.expanded_dim)
        q_HtE[:, :, :plain].copy_(plain_tHp.transpose(0, 1))
        q_HtE[:, :, plain:full].copy_(turned_tHr.transpose(0, 1))
        q_HtE[:, :, full:].zero_()
        return q_HtE[None]

    def expand(self, latent_nd: torch.Tensor, memory: ExpansionMemory) -> KeysValues:
        """Return the keys and values of tokens, [1, H, n, E], valid until memory is used again."""
        plain, rank, value = self._config.plain_dim, self._config.rank, self._config.value_dim
        k, v = memory.take(len(latent_nd))
        latent_HnR = latent_nd[:, :rank].float().expand(k.shape[1], -1, -1)
        torch.bmm(latent_HnR, self._key_up_HRp.float(), out=k[0, :, :, :plain])
        k[0, :, :, plain : plain + self._config.rope_dim].copy_(latent_nd[:, rank:])
        torch.bmm(latent_HnR, self._value_up_HRv.float(), out=v[0, :, :, :value])
        return k, v
