"""The paged pool on the CPU: whole pages to host memory and back."""

from __future__ import annotations

import pytest
import torch

from tests.pool_copies import check_copies


@pytest.mark.parametrize("num_planes", [1, 2], ids=["latents", "keys and values"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_host_pages_are_the_bytes_of_pages(num_planes: int, dtype: torch.dtype) -> None:
    """In the order in which Redis has them, so that either tier may give them to the other."""
    check_copies(torch.device("cpu"), num_planes=num_planes, dtype=dtype)
