"""The latencies that goodput asks of a request. Pure.

Source: https://docs.vllm.ai/en/latest/cli/bench/serve/ (--goodput)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from chunkmesh.bench.record import RequestRecord
from chunkmesh.errors import ConfigError

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Latencies of a request, in the order in which they are shown."""


def parse_targets(texts: Iterable[str]) -> dict[str, float]:
    """Read METRIC:MS, such as ttft:500, several in a text between spaces or commas.

    Raises:
        ConfigError: one is none, or is given twice.
    """
    targets: dict[str, float] = {}
    for word in (word for text in texts for word in re.split(r"[\s,]+", text) if word):
        metric, _, value = word.partition(":")
        try:
            limit_ms = float(value)
        except ValueError:
            limit_ms = math.nan
        if metric not in METRICS or not limit_ms > 0:
            raise ConfigError(
                f"--goodput {word}: must be METRIC:MILLISECONDS, the metric one of"
                f" {', '.join(METRICS)}"
            )
        if metric in targets:
            raise ConfigError(f"--goodput {word}: {metric} is given twice")
        targets[metric] = limit_ms
    return targets


def meets(record: RequestRecord, targets: Mapping[str, float]) -> bool:
    """Say whether a request ran to its end within every target; of itl, in each of its gaps."""
    worst_ms = {
        "ttft": record.ttft_ms,
        "tpot": record.tpot_ms,
        "itl": max(record.itls_ms, default=0.0),
        "e2el": record.e2el_ms,
    }
    return record.is_ok and all((worst_ms[name] or 0.0) <= ms for name, ms in targets.items())
