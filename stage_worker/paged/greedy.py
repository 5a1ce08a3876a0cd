"""Greedy choices on the device: only ids are carried to the host, and no launch waits for them.

The ids are those of the sampler: of equal logits the lowest id, and none where the largest logit is
no finite number.

Shapes: n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stage_worker.orders import Microbatch, SamplingRow
from stage_worker.stage import StageOutput

_NO_CHOICE = -1
"""On the device only; what is told of such rows has a field of its own."""


def is_greedy(microbatch: Microbatch) -> bool:
    """Say whether a microbatch wants no more of its logits than where the largest are."""
    return not microbatch.prompt_targets and all(map(_is_greedy, microbatch.sampling))


def _is_greedy(row: SamplingRow) -> bool:
    is_adjusted = row.penalties is not None or row.logit_bias or row.forbidden_ids
    return row.temperature == 0 and not is_adjusted and row.top_logprobs is None


def likeliest_ids(logits_nV: torch.Tensor) -> torch.Tensor:
    """Return the lowest id of each row's largest logit, int64 [n]; -1 where that is not finite.

    torch.argmax may return any of equal ones on a GPU; a least id is the same however it is found.
    """
    largest_n1 = logits_nV.amax(dim=1, keepdim=True)
    vocab_size = logits_nV.shape[1]
    ids_V = torch.arange(vocab_size, dtype=torch.int32, device=logits_nV.device)
    ids_nV = ids_V.expand_as(logits_nV).masked_fill(logits_nV != largest_n1, vocab_size)
    ids_n = ids_nV.amin(dim=1).long()
    return ids_n.masked_fill(~largest_n1.squeeze(1).isfinite(), _NO_CHOICE)


class ChosenIds:
    """Ids on their way to the host."""

    def __init__(self, ids_n: torch.Tensor, places: Sequence[int]) -> None:
        """Begin to copy likeliest_ids; the id of each sampling row is at its place."""
        self._places = places
        is_on_gpu = ids_n.device.type == "cuda"
        self._host_n = torch.empty(ids_n.shape, dtype=torch.int64, pin_memory=is_on_gpu)
        self._host_n.copy_(ids_n, non_blocking=is_on_gpu)

    def output(self) -> StageOutput:
        """Return what was chosen; once the device has passed the copy, on any thread."""
        ids_n = self._host_n.tolist()
        ids = [ids_n[place] for place in self._places]
        return StageOutput(
            sampled_ids=tuple(max(each, 0) for each in ids),
            without_choice=tuple(index for index, each in enumerate(ids) if each == _NO_CHOICE),
        )
