"""A worker's host memory for pages, between its device and Redis.

Contents are written and read by the compute thread alone, in the order of the Attach stream. What
they will be by then is known to the event loop, which hears the same orders in the same order: a
page that is not what an order takes it for is a miss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkmesh.errors import ConfigError, InvariantViolated
from chunkmesh.page_record import Bytes
from stage_worker.free_memory import free_host_bytes


class HostPages:
    """Owner of that memory; pinned, a GPU copies from and to it without another copy."""

    def __init__(self, num_bytes: int, *, pinned: bool = False) -> None:
        """Take num_bytes >= 0 at once.

        Raises:
            ConfigError: there is not so much.
        """
        free_bytes = free_host_bytes()
        if free_bytes is not None and num_bytes > free_bytes:
            raise ConfigError(
                f"{num_bytes} bytes of host memory for pages, but {free_bytes} are free: "
                "--hicache-ratio or --hicache-size is too large"
            )
        try:
            self._memory_B = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        except RuntimeError as error:
            raise ConfigError(f"no {num_bytes} bytes of host memory for pages: {error}") from error
        self._layers, self._layer_bytes = range(0), 1
        self._digests: dict[int, bytes] = {}
        """The event loop's: what each host page holds once all orders so far are done."""
        self._page_tokens = 0
        """The event loop's: of those pages."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages."""
        return len(self._memory_B)

    def begin_epoch(self, page_tokens: int) -> None:
        """Forget what is held if pages are of another size now; for the event loop."""
        if page_tokens != self._page_tokens:
            self._digests.clear()
            self._page_tokens = page_tokens

    def expect(self, digests: Sequence[bytes], host_ids: Sequence[int]) -> None:
        """Note what pages will hold; for the event loop."""
        self._digests.update(zip(host_ids, digests, strict=True))

    def count(self, digests: Sequence[bytes], host_ids: Sequence[int]) -> int:
        """Count the leading pages that are what they are taken for; for the event loop."""
        for index, (digest, host_id) in enumerate(zip(digests, host_ids, strict=False)):
            if self._digests.get(host_id) != digest:
                return index
        return min(len(digests), len(host_ids))

    def cut(self, layers: range, layer_bytes: int) -> None:
        """Cut the memory into pages of these layers; for the compute thread."""
        self._layers, self._layer_bytes = layers, layer_bytes

    def page(self, host_id: int) -> torch.Tensor:
        """Return a page [layers, layer_bytes], a view; for the compute thread.

        Raises:
            InvariantViolated: there is no such page.
        """
        num_bytes = len(self._layers) * self._layer_bytes
        end = (host_id + 1) * num_bytes
        if host_id < 0 or end > len(self._memory_B):
            raise InvariantViolated(f"host page {host_id} of {num_bytes} bytes")
        return self._memory_B[end - num_bytes : end].view(len(self._layers), -1)

    def read_page(self, layer: int, host_id: int) -> Bytes:
        """Return a page's bytes in one layer (absolute index), a view; for the compute thread."""
        data: Bytes = self.page(host_id)[self._layers.index(layer)].numpy()
        return data
