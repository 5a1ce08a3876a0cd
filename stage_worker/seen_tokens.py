"""Which ids each row has seen, and how often: what its penalties are computed from.

The sampler owns it. A row costs eight bytes for each distinct id, in host memory, whatever the
vocabulary. Shapes: S distinct ids of a row, V vocabulary.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.token_counts import TokenCounts
from stage_worker.orders import Penalties, SamplingRow


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Counts:
    """Of one row; ids ascend."""

    ids_S: npt.NDArray[np.int32]
    counts_S: npt.NDArray[np.int32]

    def plus(self, token_id: int) -> _Counts:
        """Count one more token; the counts of a known id change in place."""
        index = int(np.searchsorted(self.ids_S, token_id))
        if index < len(self.ids_S) and self.ids_S[index] == token_id:
            self.counts_S[index] += 1
            return self
        return _Counts(
            ids_S=np.insert(self.ids_S, index, token_id),
            counts_S=np.insert(self.counts_S, index, 1),
        )


class SeenTokens:
    """Owner of the counts of all rows with penalties."""

    def __init__(self) -> None:
        self._rows: dict[int, _Counts] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self, row: int, seen: TokenCounts) -> None:
        """Begin a row, or begin it anew, with what its request has seen so far."""
        self._rows[row] = _Counts(
            ids_S=seen.ids.astype(np.int32), counts_S=seen.counts.astype(np.int32)
        )

    def add(self, row: int, token_id: int) -> None:
        """Count a token that was chosen for a row that has begun."""
        self._rows[row] = self._of(row).plus(token_id)

    def release(self, row: int) -> None:
        """Forget a row; one that never began is fine."""
        self._rows.pop(row, None)

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()

    def penalise(self, scores_V: torch.Tensor, row: SamplingRow, penalties: Penalties) -> None:
        """Lower, in place, the float32 scores of the ids that a row has seen.

        Raises:
            InvariantViolated: the row has not begun, or has seen an id outside the vocabulary.
        """
        counts = self._of(row.row)
        if counts.ids_S[-1] >= len(scores_V):
            raise InvariantViolated(
                f"row {row.row} has seen id {counts.ids_S[-1]} of a vocabulary of {len(scores_V)}"
            )
        index_S = torch.from_numpy(counts.ids_S).to(scores_V.device, torch.int64)
        counts_S = torch.from_numpy(counts.counts_S).to(scores_V.device, torch.float32)
        scores_S = scores_V[index_S]
        repetition = penalties.repetition
        scores_S = torch.where(scores_S > 0, scores_S / repetition, scores_S * repetition)
        scores_S -= penalties.frequency * counts_S + penalties.presence
        # A tiny repetition penalty must not make an infinity of a large score.
        scores_V[index_S] = scores_S.clamp_(max=torch.finfo(torch.float32).max)

    def _of(self, row: int) -> _Counts:
        counts = self._rows.get(row)
        if counts is None:
            raise InvariantViolated(f"row {row} has penalties, but what it has seen was not told")
        return counts
