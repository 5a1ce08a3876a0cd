"""What a GPU and its host did while chunks were computed, out of a trace of torch's profiler. Pure.

The trace is what export_chrome_trace writes. A kernel belongs to the chunk in whose launch the call
was made that started it. The first chunk of a trace is left out, since before it there was nothing
to do: the others begin where the GPU had done the chunk before, and gaps are counted.
Source (the trace's fields): https://github.com/pytorch/kineto (libkineto/src/output_json.cpp)
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Kind = Literal["products", "attention", "other", "copies"]
KINDS: tuple[Kind, ...] = ("products", "attention", "other", "copies")
LAUNCH = "launch of a chunk"
"""Name of what the profiled thread records around each launch."""
_ATTENTION = re.compile(r"flash|fmha|attention|sdpa|^_attend|^_merge", re.IGNORECASE)
# Not the namespace of DeepGEMM, which holds other kernels too.
_PRODUCTS = re.compile(r"nvjet|gemm(?!::)|gemv|splitk", re.IGNORECASE)
_COPIES = {"gpu_memcpy", "gpu_memset"}
_CALLS = {"cuda_runtime", "cuda_driver"}
_WAITS = re.compile(r"^cu(da)?((Stream|Event|Device|Ctx|Thread)Synchronize|Memcpy(?!.*Async))")
_ALLOCATES = re.compile(r"^cu(da)?(Malloc|Free|HostAlloc|HostRegister|Mem(Alloc|Free))")
Span = tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Means of the chunks of a trace, in ms; on the GPU all but wall add up to it."""

    prefix: float
    """Mean tokens before these chunks."""
    wall_ms: float
    """From the end of the chunk before to the end of the chunk."""
    by_kind: Mapping[Kind, float]
    idle_ms: float
    host_ms: float
    """How long a launch kept the host busy."""
    overlap_ms: float
    """Of that, while the GPU worked on chunks that were launched before."""
    waits: int
    """Calls of the launching thread, in launches, that wait for the GPU; of all chunks."""
    allocations: int
    """Calls that take or give memory, likewise."""


def kind_of(name: str) -> Kind:
    """Return what a kernel does, by its name."""
    if _ATTENTION.search(name):
        return "attention"
    return "products" if _PRODUCTS.search(name) else "other"


def shares(trace: Sequence[Mapping[str, Any]], prefixes: Sequence[int]) -> Shares | None:
    """Read a trace of chunks behind these prefixes; None if no kernels are in it."""
    launches = sorted(_span(each) for each in trace if _is_launch(each))
    calls = [each for each in trace if each.get("cat") in _CALLS]
    by_chunk = _by_chunk(trace, calls, launches)
    if len(launches) != len(prefixes) or len(launches) < 2 or not all(by_chunk):
        return None
    ends = [max(_span(each)[1] for each in works) for works in by_chunk]
    num_chunks = len(launches) - 1
    by_kind: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    idle_us = overlap_us = 0.0
    for index in range(1, len(launches)):
        spans = merged(map(_span, by_chunk[index]))
        idle_us += ends[index] - ends[index - 1] - _length(spans)
        for each in by_chunk[index]:
            by_kind[_kind(each)] += float(each["dur"])
        before = merged(_span(each) for works in by_chunk[:index] for each in works)
        overlap_us += _overlap(launches[index], before)
    waits, allocations = (_count(calls, launches, wanted) for wanted in (_WAITS, _ALLOCATES))
    return Shares(
        prefix=sum(prefixes[1:]) / num_chunks,
        wall_ms=(ends[-1] - ends[0]) / 1000 / num_chunks,
        by_kind={kind: us / 1000 / num_chunks for kind, us in by_kind.items()},
        idle_ms=idle_us / 1000 / num_chunks,
        host_ms=_length(launches[1:]) / 1000 / num_chunks,
        overlap_ms=overlap_us / 1000 / num_chunks,
        waits=waits,
        allocations=allocations,
    )


def longest(trace: Sequence[Mapping[str, Any]], count: int) -> list[tuple[str, float]]:
    """Return the names of the kernels that took longest together, and the ms."""
    taken: dict[str, float] = collections.defaultdict(float)
    for each in trace:
        if _is_work(each):
            taken[each["name"]] += float(each["dur"]) / 1000
    return sorted(taken.items(), key=lambda item: -item[1])[:count]


def whole(points: Sequence[tuple[float, float]], places: Iterable[float]) -> float:
    """Sum over places what lies on the lines through two and more points, in ascending order."""
    xs = [x for x, _ in points]
    total = 0.0
    for place in places:
        index = min(max(bisect.bisect_right(xs, place), 1), len(xs) - 1)
        (x0, y0), (x1, y1) = points[index - 1], points[index]
        total += y0 + (y1 - y0) * (place - x0) / (x1 - x0)
    return total


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans, in order, without overlap."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _by_chunk(
    trace: Sequence[Mapping[str, Any]],
    calls: Sequence[Mapping[str, Any]],
    launches: Sequence[Span],
) -> list[list[Mapping[str, Any]]]:
    """Return the GPU's work of each launch; what no call of a launch began follows what it did."""
    begins = [begin for begin, _ in launches]
    chunk_of: dict[object, int] = {}
    for call in calls:
        at = float(call["ts"])
        index = bisect.bisect_right(begins, at) - 1
        if index >= 0 and at <= launches[index][1]:
            chunk_of.setdefault(_correlation(call), index)
    found: list[list[Mapping[str, Any]]] = [[] for _ in launches]
    current = 0
    for each in sorted(filter(_is_work, trace), key=lambda work: float(work["ts"])):
        current = max(current, chunk_of.get(_correlation(each), current))
        if found:
            found[current].append(each)
    return found


def _count(
    calls: Sequence[Mapping[str, Any]], launches: Sequence[Span], wanted: re.Pattern[str]
) -> int:
    """Count such calls in launches, of the thread that made most calls there."""
    inside = [
        call for call in calls if any(begin <= float(call["ts"]) <= end for begin, end in launches)
    ]
    threads = collections.Counter(call["tid"] for call in inside if "LaunchKernel" in call["name"])
    mine = [tid for tid, _ in threads.most_common(1)]
    return sum(call["tid"] in mine and bool(wanted.match(call["name"])) for call in inside)


def _overlap(span: Span, others: Sequence[Span]) -> float:
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in others)


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _kind(work: Mapping[str, Any]) -> Kind:
    return "copies" if work["cat"] in _COPIES else kind_of(work["name"])


def _is_work(event: Mapping[str, Any]) -> bool:
    return event.get("ph") == "X" and event.get("cat") in {"kernel", *_COPIES}


def _is_launch(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "user_annotation" and event.get("name") == LAUNCH


def _correlation(event: Mapping[str, Any]) -> object:
    return event.get("args", {}).get("correlation", id(event))


def _span(event: Mapping[str, Any]) -> Span:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])
