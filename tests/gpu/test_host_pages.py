"""Host pages of a GPU: pinned memory, a side stream, and who waits for whom."""

from __future__ import annotations

import pytest
import torch

from stage_worker.host_pages import HostPages
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
