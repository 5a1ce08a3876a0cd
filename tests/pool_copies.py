"""Whole pages of a paged pool to host memory and back, checked byte by byte, on any device."""

from __future__ import annotations

import torch

from stage_worker.host_pages import HostPages
from stage_worker.kv_pool import PoolShape
from stage_worker.paged.pool import PagedPool


def check_copies(device: torch.device, *, num_planes: int, dtype: torch.dtype) -> None:
    """Save pages, overwrite them at once, restore them elsewhere, overwrite the host pages at once.

    Nothing waits in between: what comes later must wait by itself.
    """
    shape = PoolShape(
        num_layers=3,
        num_planes=num_planes,
        num_kv_heads=2,
        head_dim=64,
        num_pages=64,
        page_tokens=128,
    )
    pool = PagedPool(shape, dtype, device)
    host = HostPages(64 * shape.num_layers * pool.page_layer_bytes, pinned=device.type == "cuda")
    host.cut(range(shape.num_layers), pool.page_layer_bytes)
    memory = pool._pool_LJPNKd
    memory.copy_(torch.randn(memory.shape, generator=torch.Generator().manual_seed(3)))
    expected = memory.clone()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    first, second = list(range(32)), list(range(32, 64))
    pool.save_pages(first, [host.page(each) for each in first])
    memory[:, :, :32].zero_()
    pool.wait_saved()
    for layer in range(shape.num_layers):
        wanted = expected[layer, :, 5].cpu().contiguous().view(torch.uint8).reshape(-1)
        assert torch.equal(host.page(5)[layer], wanted)
    took_s = pool.restore_pages(second, [host.page(each) for each in first])
    pool.save_pages(first, [host.page(each) for each in first])
    assert took_s() >= 0
    assert torch.equal(memory[:, :, 32:], expected[:, :, :32])
    assert not memory[:, :, :32].any()
    pool.wait_saved()
    assert not any(host.page(each).any() for each in first)
