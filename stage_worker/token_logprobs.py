"""Log-probabilities of tokens under the model alone: log-softmax of its logits in float32.

Called for the output by the sampler and for the prompt by the readout. Numbers are clamped to what
float32 can hold, so that what the model rules out is finite on the wire, and so is a position whose
logits are no numbers.

Shapes: n rows, V vocabulary, k most likely ids.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.logprobs import TokenLogprobs
from stage_worker.candidates import ranked


def token_logprobs(
    logits_nV: torch.Tensor, token_ids_n: npt.NDArray[np.integer], num_top: int
) -> TokenLogprobs:
    """Return the log-probability of one id a row, and those of the row's most likely ids.

    k is num_top, or V if that is less. Equal logits are told in the order of their ids. Takes two
    arrays of float32 [n, V] where logits are narrower, else one.

    Raises:
        InvariantViolated: an id outside the vocabulary.
    """
    if int(token_ids_n.max()) >= logits_nV.shape[1]:
        raise InvariantViolated(
            f"log-probability of id {token_ids_n.max()} of a vocabulary of {logits_nV.shape[1]}"
        )
    logits_nV = logits_nV.float()
    logprobs_nV = torch.log_softmax(logits_nV, dim=1)
    chosen_n1 = torch.from_numpy(token_ids_n.astype(np.int64))[:, None].to(logits_nV.device)
    logprobs_n = logprobs_nV.gather(1, chosen_n1).squeeze(1)
    top_ids_nk = _most_likely(logits_nV, min(num_top, logits_nV.shape[1]))
    return TokenLogprobs(
        logprobs_T=_finite(logprobs_n),
        top_ids_Tk=top_ids_nk.cpu().numpy().astype(np.uint32),
        top_logprobs_Tk=_finite(logprobs_nV.gather(1, top_ids_nk)),
    )


def _finite(logprobs: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return the numbers, minus infinity and what is none as the lowest one."""
    lowest = torch.finfo(torch.float32).min
    return logprobs.nan_to_num(nan=lowest, neginf=lowest).cpu().numpy()


def _most_likely(logits_nV: torch.Tensor, num_top: int) -> torch.Tensor:
    """Return ids [n, k] of the largest logits of each row, largest first, then lower id first."""
    vocab_size = logits_nV.shape[1]
    # One more than wanted shows whether several ids tie for the last place.
    values_nk, ids_nk = logits_nV.topk(min(num_top + 1, vocab_size), dim=1)
    if 0 < num_top < vocab_size:
        for row in (values_nk[:, -1] == values_nk[:, -2]).nonzero().flatten().tolist():
            ids_nk[row, :num_top] = ranked(logits_nV[row], num_top)
    ids_nk = ids_nk[:, :num_top].sort(dim=1).values
    order_nk = logits_nV.gather(1, ids_nk).sort(dim=1, descending=True, stable=True).indices
    return ids_nk.gather(1, order_nk)
