"""Requests for tests of the scheduler."""

from __future__ import annotations

import numpy as np

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.pages import TokenIds, extend_chain
from scheduler.events import RequestSpec, Sampling, TextSink
from tests.letter_text import LetterText

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
NAMESPACE = b"n" * 32


def make_spec(
    request_id: str,
    prompt: int | TokenIds,
    *,
    max_new_tokens: int = 1,
    min_new_tokens: int = 0,
    end_ids: frozenset[int] = frozenset(),
    text: TextSink | None = None,
    page_tokens: int = 16,
    namespace: bytes = NAMESPACE,
    sampling: Sampling = GREEDY,
    num_outputs: int = 1,
    prompt_top_logprobs: int | None = None,
    priority: int = 0,
    user: str = "",
) -> RequestSpec:
    """Build a request; a prompt given as a length is made of ids 0, 1, 2, ...

    text is the first output's.
    """
    prompt_ids = np.arange(prompt, dtype=np.uint32) if isinstance(prompt, int) else prompt
    return RequestSpec(
        request_id=request_id,
        prompt_ids=prompt_ids,
        namespace=namespace,
        digests=extend_chain(namespace, prompt_ids, page_tokens),
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        end_ids=end_ids,
        sampling=sampling,
        texts=(text or LetterText(), *(LetterText() for _ in range(1, num_outputs))),
        prompt_top_logprobs=prompt_top_logprobs,
        priority=priority,
        user=user,
    )


def zero_logprobs(num_tokens: int) -> TokenLogprobs:
    """Return what a model tells that is sure of everything, without the most likely ids."""
    return TokenLogprobs(
        logprobs_T=np.zeros(num_tokens, dtype=np.float32),
        top_ids_Tk=np.zeros((num_tokens, 0), dtype=np.uint32),
        top_logprobs_Tk=np.zeros((num_tokens, 0), dtype=np.float32),
    )
