"""How long a prompt will take until it is computed, by the latency model. Pure.

Prompts that compute side by side share the slots, each getting as much as the others until it is
done. A pipeline that is full brings one chunk a slot; for a prompt that has nothing in flight it
has to be filled first.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.latency_model import PipelineLatency, Work
from scheduler.prefill import Prefill


def time_left_ms(
    own: Prefill, others: Iterable[Prefill], latency: PipelineLatency, *, window: int
) -> float:
    """Return the time until own is done; 0 if it is.

    Args:
        own: the prompt in question.
        others: those that are not served after it.
        latency: of the pipeline.
        window: microbatches in flight at most, >= 1.
    """
    rest_ms = _rest_ms(own, latency)
    if not rest_ms:
        return 0.0
    shared_ms = rest_ms + sum(min(_rest_ms(other, latency), rest_ms) for other in others)
    slowed = max(latency.num_stages / window, 1.0)
    fill_ms = 0.0
    if not own.num_in_flight:
        fill_ms = (latency.num_stages - 1) * rest_ms / own.num_left
    return shared_ms * slowed + fill_ms


def _rest_ms(prefill: Prefill, latency: PipelineLatency) -> float:
    """Return the time of the chunks that are not done, as if they were alike; 0 if all are."""
    num_left = prefill.num_left
    if not num_left:
        return 0.0
    start, end = prefill.done_tokens, prefill.end
    mean = Work(
        prefix_tokens=(start + end) // 2,
        new_tokens=(end - start) // num_left,
        pairs=(end * end - start * start) // num_left,
    )
    return num_left * latency.microbatch_ms(mean)
