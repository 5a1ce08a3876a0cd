"""Scratch memory that stays where it is while addresses of it are known elsewhere."""

from __future__ import annotations

import pytest
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.paged.scratch import Pieces, Scratch


def test_own_pieces_are_left_alone() -> None:
    """A long chunk makes scratch memory grow, but none that a captured step has."""
    scratch, pieces = Scratch(torch.device("cpu")), Pieces()
    own = scratch.take("normed", (4, 8), torch.float32)
    with scratch.using(pieces):
        captured = scratch.take("normed", (2, 8), torch.float32)
    scratch.take("normed", (400, 8), torch.float32)
    with scratch.using(pieces):
        again = scratch.take("normed", (2, 8), torch.float32)
    assert captured.data_ptr() == again.data_ptr() != own.data_ptr()


def test_fixed_pieces_do_not_move() -> None:
    """To grow would be to free memory that a replay still writes to."""
    scratch, pieces = Scratch(torch.device("cpu")), Pieces()
    with scratch.using(pieces):
        scratch.take("normed", (4, 8), torch.float32)
        pieces.is_fixed = True
        scratch.take("normed", (2, 8), torch.float32)
        with pytest.raises(InvariantViolated, match="40 numbers of fixed scratch"):
            scratch.take("normed", (5, 8), torch.float32)
