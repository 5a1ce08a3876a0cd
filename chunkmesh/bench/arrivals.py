"""When the requests of a benchmark are sent. Pure.

Gaps are drawn from a gamma distribution whose shape is the burstiness: 1 is a Poisson process, less
comes in bursts, more is more even, infinity is a clock.
Source: https://docs.vllm.ai/en/latest/cli/bench/serve/ (--request-rate, --burstiness)
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def arrival_times(
    number: int, *, rate: float, burstiness: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return seconds since the first request, ascending; the first is 0.

    rate is requests a second, > 0; at infinity all come at once. burstiness is > 0.
    """
    if math.isinf(rate):
        return np.zeros(number)
    if math.isinf(burstiness):
        return np.arange(number) / rate
    gaps = rng.gamma(burstiness, 1 / (rate * burstiness), size=max(0, number - 1))
    return np.concatenate([np.zeros(min(1, number)), np.cumsum(gaps)])
