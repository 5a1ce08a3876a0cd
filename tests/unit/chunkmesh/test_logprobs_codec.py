"""Log-probabilities cross the wire as they are; what does not fit together is refused."""

from __future__ import annotations

import numpy as np
import pytest

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.logprobs_codec import from_message, to_message
from chunkmesh.v1 import common_pb2


@pytest.mark.parametrize(("num_tokens", "num_top"), [(1, 0), (3, 2), (0, 0)])
def test_there_and_back(num_tokens: int, num_top: int) -> None:
    """The lowest number of a float, which stands for what the model rules out, is no infinity."""
    shape = (num_tokens, num_top)
    logprobs = TokenLogprobs(
        logprobs_T=np.full(num_tokens, np.finfo(np.float32).min),
        top_ids_Tk=np.arange(num_tokens * num_top, dtype=np.uint32).reshape(shape),
        top_logprobs_Tk=-np.arange(num_tokens * num_top, dtype=np.float32).reshape(shape),
    )
    read = from_message(to_message(logprobs))
    assert np.array_equal(logprobs.logprobs_T, read.logprobs_T)
    assert np.array_equal(logprobs.top_ids_Tk, read.top_ids_Tk)
    assert np.array_equal(logprobs.top_logprobs_Tk, read.top_logprobs_Tk)
    assert np.dtype(np.float32) == read.logprobs_T.dtype
    assert np.dtype(np.uint32) == read.top_ids_Tk.dtype


@pytest.mark.parametrize(("top_ids", "top_logprobs"), [([1], [-1.0, -2.0]), ([1, 2], [-1.0])])
def test_numbers_that_do_not_fit_are_refused(top_ids: list[int], top_logprobs: list[float]) -> None:
    """Shifted by one, every id would have another's probability."""
    message = common_pb2.TokenLogprobs(
        logprobs=[-1.0], num_top=2, top_ids=top_ids, top_logprobs=top_logprobs
    )
    with pytest.raises(ValueError, match="reshape"):
        from_message(message)
