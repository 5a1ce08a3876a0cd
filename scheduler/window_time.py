"""When chunks leave a pipeline that lets in only so many at once. Pure.

As scheduler.pipeline_time, with the engine's in-flight window: a microbatch enters once the last
stage is done with the one a window before it. So the first stage cannot run ahead over short
chunks to be busy with long ones later, which matters for prompts in a row.
"""

from __future__ import annotations

import numpy as np

from scheduler.latency_model import FloatArray
from scheduler.pipeline_time import LinkTime


def windowed_finish_ms(
    times_ms: FloatArray, tokens: FloatArray, link: LinkTime, *, window: int
) -> FloatArray:
    """Return when each chunk is finished on each stage, [stages, chunks], from the first start.

    Args:
        times_ms: [stages, chunks], in the order in which the chunks enter.
        tokens: [chunks], what crosses the links.
        link: the same between all stages; serves one chunk at a time.
        window: most chunks inside the pipeline, >= 1.
    """
    busy_ms = (tokens * link.ms_per_token).tolist()
    last = len(times_ms) - 1
    free_ms = [0.0] * (last + 1)
    link_free_ms = [0.0] * (last + 1)
    finished: list[list[float]] = []
    for chunk, stage_times_ms in enumerate(times_ms.T.tolist()):
        arrived_ms = finished[chunk - window][last] if chunk >= window else 0.0
        for stage, time_ms in enumerate(stage_times_ms):
            end_ms = max(free_ms[stage], arrived_ms) + time_ms
            free_ms[stage] = end_ms
            if stage < last:
                sent_ms = max(end_ms, link_free_ms[stage]) + busy_ms[chunk]
                link_free_ms[stage] = sent_ms
                arrived_ms = sent_ms + link.latency_ms
        finished.append(free_ms.copy())
    return np.array(finished).T
