"""Host pages of a GPU: pinned memory, a side stream, and who waits for whom."""

from __future__ import annotations

import pytest
import torch

from stage_worker.host_pages import HostPages
from stage_worker.kv_pool import PoolShape
from stage_worker.paged.pool import PagedPool
from stage_worker.staging import StagedLoad
from tests.pool_copies import check_copies

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.mark.parametrize("num_planes", [1, 2], ids=["latents", "keys and values"])
def test_copies_and_compute_do_not_overtake_each_other(gpu: torch.device, num_planes: int) -> None:
    """Pages are overwritten right behind their copies, on either side; repeated, since it races."""
    for _ in range(20):
        check_copies(gpu, num_planes=num_planes, dtype=torch.bfloat16)


def test_host_memory_is_pinned(gpu: torch.device) -> None:
    """Else each copy would be made twice, and nothing else could run meanwhile."""
    host = HostPages(1 << 20, pinned=gpu.type == "cuda")
    host.cut(range(2, 4), 1024)
    assert host.page(3).is_pinned()


def test_loaded_pages_reach_the_device_though_their_memory_is_used_again(
    gpu: torch.device,
) -> None:
    """The next load gets it at once, and copies may still wait; repeated, since it races."""
    shape = PoolShape(
        num_layers=4, num_planes=2, num_kv_heads=8, head_dim=128, num_pages=16, page_tokens=128
    )
    pool = PagedPool(shape, torch.bfloat16, gpu)
    pages = slice(0, shape.num_pages)
    page_ids = list(range(shape.num_pages))
    for turn in range(20):
        load = StagedLoad(
            load_id=0,
            num_room=shape.num_pages,
            page_shape=(shape.num_layers, pool.page_layer_bytes),
            is_pinned=gpu.type == "cuda",
        )
        load.room(pages).fill_(turn)
        load.add(0, load.room(pages))
        load.num_pages = shape.num_pages
        assert load.ready[0].is_pinned() == (gpu.type == "cuda")
        pool.restore_pages(page_ids, load.ready)
        del load
        following = StagedLoad(
            load_id=1,
            num_room=shape.num_pages,
            page_shape=(shape.num_layers, pool.page_layer_bytes),
            is_pinned=gpu.type == "cuda",
        )
        following.room(pages).fill_(255)
        found = pool._pool_LJPNKd[:, :, : shape.num_pages].contiguous().view(torch.uint8)
        assert bool((found == turn).all())
