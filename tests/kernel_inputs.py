"""Random inputs of the kernels, and how far an output is from its float64 definition."""

from __future__ import annotations

import dataclasses

import torch

from stage_worker.kernels.reference import Angles, HeadNorms, PagedContexts, PagedKeysValues

POISON = float("nan")
"""What outputs hold before a kernel, so that an unwritten element is seen."""


class Dice:
    """Draws random tensors for one device; the same seed gives the same tensors everywhere."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self.device = device
        # Triton's interpreter multiplies matrices of bfloat16 by their bits.
        self.dtype = torch.float16 if device.type == "cpu" else torch.bfloat16
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        """Return numbers of the standard normal distribution."""
        return torch.randn(*shape, generator=self._generator).to(self.device, self.dtype)

    def permutation(self, count: int) -> torch.Tensor:
        """Return 0..count - 1 in random order, int64."""
        return torch.randperm(count, generator=self._generator).to(self.device)

    def poison(self, *shape: int) -> torch.Tensor:
        """Return memory for an output."""
        return torch.full(shape, POISON, device=self.device, dtype=self.dtype)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """A paged cache of several sequences."""

    num_kv_heads: int
    head_dim: int
    page_tokens: int
    num_keys: tuple[int, ...]
    """Of each sequence."""


def paged_cache(dice: Dice, shape: CacheShape) -> tuple[PagedKeysValues, PagedContexts]:
    """Return a cache whose pages are scattered; slots that nobody wrote hold poison."""
    page_counts = [-(-keys // shape.page_tokens) for keys in shape.num_keys]
    page_ids = dice.permutation(sum(page_counts) + 1)[:-1].to(torch.int32)
    slots_shape = (sum(page_counts) + 1, shape.page_tokens, shape.num_kv_heads, shape.head_dim)
    k_PNKd, v_PNKd = dice.poison(*slots_shape), dice.poison(*slots_shape)
    table_Bp = torch.full(
        (len(page_counts), max(page_counts)), 2**30, dtype=torch.int32, device=dice.device
    )
    first = 0
    for row, (count, keys) in enumerate(zip(page_counts, shape.num_keys, strict=True)):
        table_Bp[row, :count] = page_ids[first : first + count]
        slots = slots_of(table_Bp[row], shape.page_tokens, keys)
        for pages in (k_PNKd, v_PNKd):
            pages.flatten(0, 1)[slots] = dice.normal(keys, shape.num_kv_heads, shape.head_dim)
        first += count
    num_keys_B = torch.tensor(shape.num_keys, dtype=torch.int32, device=dice.device)
    contexts = PagedContexts(page_table_Bp=table_Bp, num_keys_B=num_keys_B)
    return PagedKeysValues(k_PNKd=k_PNKd, v_PNKd=v_PNKd), contexts


def slots_of(table_p: torch.Tensor, page_tokens: int, num_keys: int) -> torch.Tensor:
    """Return the slots of a sequence's first positions, int64."""
    positions = torch.arange(num_keys, device=table_p.device)
    return table_p[positions // page_tokens].long() * page_tokens + positions % page_tokens


def angles(dice: Dice, num_rows: int, head_dim: int, first: int = 1000) -> Angles:
    """Return the angles of positions from first on."""
    positions_T = torch.arange(first, first + num_rows, device=dice.device).float()
    exponent_h = torch.arange(0, head_dim, 2, device=dice.device).float() / head_dim
    angle_Th = positions_T[:, None] / 10000.0**exponent_h
    return Angles(cos_Th=angle_Th.cos(), sin_Th=angle_Th.sin())


def head_norms(dice: Dice, head_dim: int) -> HeadNorms:
    """Return norms with random weights."""
    return HeadNorms(q_d=dice.normal(head_dim), k_d=dice.normal(head_dim), eps=1e-6)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64."""
    return tensor.to(torch.float64, copy=True)


def distance(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return |found - right| / |right|; NaN and thus no bound if anything is not finite."""
    found, right = found.double(), right.double()
    return float((found - right).norm() / right.norm())
