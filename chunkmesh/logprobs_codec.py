"""Between log-probabilities and their message, which stages, scheduler and clients exchange."""

from __future__ import annotations

import numpy as np

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.v1 import common_pb2


def to_message(logprobs: TokenLogprobs) -> common_pb2.TokenLogprobs:
    """Write a message."""
    return common_pb2.TokenLogprobs(
        logprobs=logprobs.logprobs_T.tolist(),
        num_top=logprobs.top_ids_Tk.shape[1],
        top_ids=logprobs.top_ids_Tk.ravel().tolist(),
        top_logprobs=logprobs.top_logprobs_Tk.ravel().tolist(),
    )


def from_message(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    """Read a message.

    Raises:
        ValueError: the numbers of tokens and most likely ids do not fit.
    """
    shape = (len(message.logprobs), message.num_top)
    return TokenLogprobs(
        logprobs_T=np.array(message.logprobs, dtype=np.float32),
        top_ids_Tk=np.array(message.top_ids, dtype=np.uint32).reshape(shape),
        top_logprobs_Tk=np.array(message.top_logprobs, dtype=np.float32).reshape(shape),
    )
