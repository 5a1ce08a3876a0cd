"""Log-probabilities of consecutive tokens, as the last stage tells them. Pure.

They are of the model alone: log-softmax of its logits before penalties, bias, temperature and
filters, so that they say the same however a token was chosen. All are finite: what the model rules
out is the lowest number of a float.

Shapes: T tokens, k most likely ids of each position.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt


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

    def __getitem__(self, tokens: slice) -> TokenLogprobs:
        """Return views of some tokens."""
        return TokenLogprobs(
            logprobs_T=self.logprobs_T[tokens],
            top_ids_Tk=self.top_ids_Tk[tokens],
            top_logprobs_Tk=self.top_logprobs_Tk[tokens],
        )


def join(parts: list[TokenLogprobs]) -> TokenLogprobs:
    """Put at least one part of the same k behind the other."""
    return TokenLogprobs(
        logprobs_T=np.concatenate([part.logprobs_T for part in parts]),
        top_ids_Tk=np.concatenate([part.top_ids_Tk for part in parts]),
        top_logprobs_Tk=np.concatenate([part.top_logprobs_Tk for part in parts]),
    )
