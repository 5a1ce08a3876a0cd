"""Log-probabilities of consecutive tokens are cut and put together without loss."""

from __future__ import annotations

import numpy as np

from chunkmesh.logprobs import TokenLogprobs, join

WHOLE = TokenLogprobs(
    logprobs_T=np.array([-1, -2, -3], dtype=np.float32),
    top_ids_Tk=np.arange(6, dtype=np.uint32).reshape(3, 2),
    top_logprobs_Tk=-np.arange(6, dtype=np.float32).reshape(3, 2),
)


def test_parts_keep_what_belongs_together() -> None:
    """A part that began at another token than its most likely ids would tell of wrong tokens."""
    part = WHOLE[1:]
    assert len(part) == 2
    assert [-2, -3] == part.logprobs_T.tolist()
    assert [[2, 3], [4, 5]] == part.top_ids_Tk.tolist()
    assert [[-2, -3], [-4, -5]] == part.top_logprobs_Tk.tolist()


def test_joined_parts_are_the_whole() -> None:
    """Chunks of a prompt are told one by one, and a slow reader gets them as one."""
    again = join([WHOLE[:1], WHOLE[1:3], WHOLE[3:]])
    assert np.array_equal(WHOLE.logprobs_T, again.logprobs_T)
    assert np.array_equal(WHOLE.top_ids_Tk, again.top_ids_Tk)
    assert np.array_equal(WHOLE.top_logprobs_Tk, again.top_logprobs_Tk)
