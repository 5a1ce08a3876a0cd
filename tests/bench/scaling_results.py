"""Rows of a bench that may run out of time: printed and written as they come."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

_LONG = frozenset({"timeline", "info", "points"})


class Clock:
    """Says whether there is time to begin something."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s

    def allows(self, seconds: float) -> bool:
        """Whether so much is left."""
        return time.monotonic() + seconds < self._end_s


class Results:
    """Rows of the table, printed and written as they come."""

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = {"about": about, "rows": []}
        print(json.dumps(about), flush=True)

    def add(self, **row: Any) -> None:
        """Add a row; what would be long goes to the file only."""
        self._content["rows"].append(row)
        shown = {key: value for key, value in row.items() if key not in _LONG}
        print("  ".join(f"{key}={_short(value)}" for key, value in shown.items()), flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps(self._content))

    def best_ttft_s(self, num_stages: int, kind: str) -> float | None:
        """Return the least median of a kind of plans, None without any."""
        medians = [
            row["median_s"]
            for row in self._content["rows"]
            if row["what"] == "ttft" and row["stages"] == num_stages and row["kind"] == kind
        ]
        return min(medians, default=None)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return str(value)
