"""Log-probabilities of consecutive tokens, between the last stage, the scheduler and the client.

They are of the model alone: log-softmax of its logits before penalties, bias, temperature and
filters, so that they say the same however a token was chosen. All are finite: what the model rules
out is the lowest number of a float.

Shapes: T tokens, k most likely ids of each position.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from chunkmesh.v1 import common_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLogprobs:
    """Natural logarithms; arrays are only read."""

    logprobs_T: npt.NDArray[np.float32]
    """Of the tokens themselves."""
    top_ids_Tk: npt.NDArray[np.uint32]
    """Most likely first."""
    top_logprobs_Tk: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.logprobs_T)

    def behind(self, num_tokens: int) -> TokenLogprobs:
        """Return what is left without the first num_tokens tokens."""
        return TokenLogprobs(
            logprobs_T=self.logprobs_T[num_tokens:],
            top_ids_Tk=self.top_ids_Tk[num_tokens:],
            top_logprobs_Tk=self.top_logprobs_Tk[num_tokens:],
        )


def join(parts: list[TokenLogprobs]) -> TokenLogprobs:
    """Put at least one part of the same k behind the other."""
    return TokenLogprobs(
        logprobs_T=np.concatenate([part.logprobs_T for part in parts]),
        top_ids_Tk=np.concatenate([part.top_ids_Tk for part in parts]),
        top_logprobs_Tk=np.concatenate([part.top_logprobs_Tk for part in parts]),
    )


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
