"""Token ids that a first stage is sent. Pure."""

from __future__ import annotations

from chunkmesh.errors import InvariantViolated
from chunkmesh.pages import TokenIds
from stage_worker.orders import Microbatch


def checked_token_ids(microbatch: Microbatch, vocab_size: int) -> TokenIds:
    """Return the ids of all entries.

    Raises:
        InvariantViolated: there is not one for each token, or one is not in the vocabulary.
    """
    ids = microbatch.token_ids
    if ids is None or len(ids) != microbatch.num_tokens:
        raise InvariantViolated(
            f"{0 if ids is None else len(ids)} token ids for {microbatch.num_tokens} tokens"
        )
    if int(ids.max()) >= vocab_size:
        raise InvariantViolated(f"token id {int(ids.max())} of a vocabulary of {vocab_size}")
    return ids
