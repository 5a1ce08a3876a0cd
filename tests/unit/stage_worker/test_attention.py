"""Attention over keys of narrow types: widened in pieces, merged in float32."""

from __future__ import annotations

import pytest
import torch

from stage_worker import attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """A long context is never widened at once; what is float32 is not copied at all."""
    monkeypatch.setattr(attention, "_PIECE_NUMBERS", 8 * 2 * 16)
    k, v = torch.randn(2, 1, 2, 21, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    pieces = list(attention.wide([(k, v)]))
    assert [wide_k.shape[2] for wide_k, _ in pieces] == (
        [21] if dtype == torch.float32 else [8, 8, 5]
    )
    assert torch.equal(k.float(), torch.cat([wide_k for wide_k, _ in pieces], dim=2))
    assert torch.equal(v.float(), torch.cat([wide_v for _, wide_v in pieces], dim=2))
    assert (pieces[0][0] is k) == (dtype == torch.float32)


def test_pieces_are_merged_without_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a context is cut, the result is that of one piece in float32."""
    q, k, v = torch.randn(3, 1, 2, 40, 16, generator=torch.Generator().manual_seed(2)).bfloat16()
    whole = torch.softmax(q.double() @ k.double().mT / 4, dim=-1) @ v.double()
    monkeypatch.setattr(attention, "_PIECE_NUMBERS", 3 * 2 * 16)
    partials = (attention.attend_all(q.float(), piece) for piece in attention.wide([(k, v)]))
    merged, _ = attention.merge(partials)
    assert torch.allclose(whole, merged.double(), atol=1e-5)


def test_latents_are_widened_once() -> None:
    """Keys and values that are the same memory stay so."""
    latent = torch.randn(1, 1, 5, 16).bfloat16()
    [(k, v)] = attention.wide([(latent, latent)])
    assert k is v
