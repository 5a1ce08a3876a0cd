"""What becomes of pages that microbatches have filled, beside being stored. Pure; one a route.

Later requests find them on the devices, and they are copied to host memory. What was computed
before the pool was flushed is neither kept nor copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.actions import SendSavePages
from scheduler.engine_config import EngineConfig
from scheduler.part import Part
from scheduler.tiers import Tiers


class FilledPages:
    """Hands the full pages of outputs to the tiers of one route."""

    def __init__(self, config: EngineConfig, tiers: Tiers, *, epoch: int) -> None:
        """Begin with none."""
        self._page_tokens = config.page_tokens
        self._is_kept = config.enable_prefix_caching
        self._pages, self._host = tiers.device, tiers.host
        self._epoch = epoch

    def take(self, parts: Sequence[Part]) -> list[SendSavePages]:
        """Take in what a microbatch has filled; return what is to be copied to host memory."""
        for part in parts:
            self._keep(part)
        saves = [self._save(part) for part in parts] if self._host.num_pages else []
        return [save for save in saves if save is not None]

    def _keep(self, part: Part) -> None:
        """Let later requests find the full pages up to a part's end, which all stages have."""
        request, num_full = part.request, part.end // self._page_tokens
        table = request.table
        is_old = table.generation != self._pages.generation
        if num_full <= table.num_kept or is_old or not self._is_kept:
            return
        digests = request.leading_digests(num_full, self._page_tokens)
        self._pages.keep(request.spec.namespace, digests, table.page_ids[:num_full])
        table.num_kept = num_full

    def _save(self, part: Part) -> SendSavePages | None:
        """Copy the full pages up to a part's end to host memory, if it lacks them and has room."""
        request, num_full = part.request, part.end // self._page_tokens
        table = request.table
        is_old = table.generation != self._pages.generation
        if num_full <= len(table.host_ids) or is_old:
            return None
        held, order = self._host.save(
            request.spec.namespace,
            request.leading_digests(num_full, self._page_tokens),
            table.page_ids[:num_full],
            len(table.host_ids),
            epoch=self._epoch,
        )
        table.host_ids += held
        return order
