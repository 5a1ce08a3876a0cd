"""Finds the metrics that the code defines, and what it says of each, without running it."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVICES = {
    "scheduler": "Scheduler",
    "stage_worker": "Stage worker",
    "hicache": "HiCache",
    "chunkmesh/gateway": "Gateway",
    "chunkmesh": "Every service that has the part in question",
}
"""Folders, those inside others first, and whose side door tells what is defined there."""
_TYPES = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "Enum": "gauge"}
_UNITS = {
    "bytes_per_second": "bytes per second",
    "seconds": "seconds",
    "bytes": "bytes",
    "tokens": "tokens",
    "ratio": "ratio",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family, as /metrics shows it."""

    name: str
    """With the _total of a counter."""
    type: str
    labels: tuple[str, ...]
    meaning: str
    service: str

    @property
    def unit(self) -> str:
        """What a value counts, by the name."""
        base = self.name.removesuffix("_total")
        if "_pages" in base and not base.endswith(("bytes", "seconds")):
            return "pages"
        return next((unit for ending, unit in _UNITS.items() if base.endswith(ending)), "1")


@functools.cache
def metrics_in_code() -> list[Metric]:
    """Return all metrics in the order of services and names."""
    found = [
        metric
        for package in ("scheduler", "stage_worker", "hicache", "chunkmesh")
        for path in sorted((ROOT / package).rglob("*.py"))
        for metric in _defined_in(path.relative_to(ROOT))
    ]
    order = list(SERVICES.values())
    return sorted(found, key=lambda metric: (order.index(metric.service), metric.name))


def metrics_page() -> str:
    """Return the tables of docs/metrics.md."""
    lines: list[str] = []
    for service in SERVICES.values():
        lines += [f"## {service}", "", "| name | type | labels | unit | meaning |"]
        lines += ["|---|---|---|---|---|"]
        for metric in metrics_in_code():
            if metric.service == service:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                lines.append(
                    f"| `{metric.name}` | {metric.type} | {labels} | {metric.unit}"
                    f" | {metric.meaning} |"
                )
        lines.append("")
    return "\n".join(lines)


def _defined_in(path: Path) -> Iterator[Metric]:
    """Yield what a file defines by calls with a literal name."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if "prometheus_client" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        kind = node.func.id
        if kind in _TYPES and (name := _literal(node.args[0])).startswith("chunkmesh_"):
            yield Metric(
                name=_shown_name(name, kind),
                type=_TYPES[kind],
                labels=_labels(node, kind, name),
                meaning=_literal(node.args[1]),
                service=next(
                    service for folder, service in SERVICES.items() if path.is_relative_to(folder)
                ),
            )


def _literal(node: ast.expr) -> str:
    """Return a literal text, else an empty one."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def _labels(node: ast.Call, kind: str, name: str) -> tuple[str, ...]:
    """Return the names of a metric's labels; an Enum's state is one."""
    if kind == "Enum":
        return (name,)
    return tuple(ast.literal_eval(node.args[2])) if len(node.args) > 2 else ()


def _shown_name(name: str, kind: str) -> str:
    return f"{name.removesuffix('_total')}_total" if kind == "Counter" else name


if __name__ == "__main__":
    print(metrics_page(), end="")
