"""The tables of `chunkmesh bench`: of one result, and of two against each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from chunkmesh.bench.comparison import ComparedFigure, differences
from chunkmesh.bench.result import BenchResult

_COUNTS = (
    ("completed", "requests completed"),
    ("failed", "requests failed"),
    ("unfinished", "requests cut short"),
    ("not_sent", "requests not sent"),
    ("duration", "duration, s"),
    ("total_input_tokens", "input tokens"),
    ("total_output_tokens", "output tokens"),
    ("cached_ratio", "cached share of input"),
    ("num_preemptions", "preemptions"),
    ("num_retries", "sent again"),
    ("request_throughput", "requests/s"),
    ("request_goodput", "good requests/s"),
    ("input_throughput", "input tokens/s"),
    ("output_throughput", "output tokens/s"),
    ("total_token_throughput", "total tokens/s"),
)
_IF_ANY = {"unfinished", "not_sent", "num_preemptions", "num_retries"}
_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}


def print_result(console: Console, result: BenchResult, metrics: Sequence[str]) -> None:
    """Print a result: of several runs each figure's median, and between what they lie."""
    for line in _heading(result):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_count_table(result))
    table = _latency_table(result, metrics)
    if table.row_count:
        console.print(table)
    for line in _remarks(result):
        console.print(line, markup=False, soft_wrap=True)


def print_comparison(
    console: Console, names: tuple[str, str], results: tuple[BenchResult, BenchResult],
    rows: Iterable[ComparedFigure],
) -> None:  # fmt: skip
    """Print what differs around the figures, then the figures."""
    base, new = results
    for line in surroundings(base, new):
        console.print(line, markup=False, soft_wrap=True)
    table = Table("figure", *names, "ratio", "verdict")
    for column in table.columns[1:4]:
        column.justify = "right"
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        table.add_row(row.name, _span(row.base), _span(row.new), ratio, row.verdict)
    console.print(table)


def surroundings(base: BenchResult, new: BenchResult) -> list[str]:
    """Return what else differs: model, stages, strategy, programs, targets."""
    pairs = (
        ("model", base.model, new.model),
        ("mesh", _setup(base), _setup(new)),
        ("goodput_ms", base.goodput_ms, new.goodput_ms),
        ("client", _program(base), _program(new)),
        ("workload", base.workload, new.workload),
    )
    return [
        line for name, old, other in pairs for line in differences(old, other, prefix=f"{name} ")
    ]


def _heading(result: BenchResult) -> list[str]:
    server, workload = result.server, result.workload
    name, *shape = (
        value if field == "name" else f"{field.replace('_', '-')} {value}"
        for field, value in workload["dataset"].items()
    )
    rate = workload["request_rate"]
    load = "all at once" if rate == "inf" else f"{rate:g} requests/s"
    if workload["max_concurrency"]:
        load += f", at most {workload['max_concurrency']} at a time"
    num_prompts = workload["num_prompts"]
    prompts = f"{num_prompts} {'prompt' if num_prompts == 1 else 'prompts'}"
    num_stages = len(_route(result))
    stages = f"{num_stages} {'stage' if num_stages == 1 else 'stages'}"
    return [
        f"model     {result.model['served_model_name']}",
        f"mesh      {stages}, {server['chunk_strategy']} chunks, version {server['version']}",
        f"workload  {prompts}, seed {workload['seed']}, {load}",
        f"dataset   {', '.join([name, *shape])}",
    ]


def _count_table(result: BenchResult) -> Table:
    runs = len(result.runs)
    table = Table("", "value" if runs == 1 else f"median of {runs} runs (least - most)")
    table.columns[1].justify = "right"
    for figure, title in _COUNTS:
        values = result.values(figure)
        if values and (figure not in _IF_ANY or any(values)):
            table.add_row(title, _span(values))
    return table


def _latency_table(result: BenchResult, metrics: Sequence[str]) -> Table:
    kinds = dict.fromkeys(
        name.partition("_")[0]
        for run in result.runs
        for name in run.figures
        if name.endswith("_ms") and not name.startswith("std_")
    )
    table = Table("ms", *kinds)
    for column in table.columns[1:]:
        column.justify = "right"
    for metric in metrics:
        cells = [result.values(f"{kind}_{metric}_ms") for kind in kinds]
        if any(cells):
            table.add_row(_TITLES[metric], *(_span(values) if values else "" for values in cells))
    return table


def _remarks(result: BenchResult) -> list[str]:
    """Say what does not fit into a table."""
    remarks = []
    lags = [run.lag for run in result.runs]
    remarks.append(
        f"client: event loop late by {max(lag.loop_p99_ms for lag in lags):.2f} ms (p99),"
        f" sending by {max(lag.late_p99_ms for lag in lags):.2f} ms;"
        f" it used {max(lag.cpu_share for lag in lags):.0%} of a core"
    )
    records = [record for run in result.runs for record in run.records or ()]
    waits_s = [record.sent_s - record.due_s for record in records if record.sent_s is not None]
    if result.workload["max_concurrency"] and result.workload["request_rate"] != "inf" and waits_s:
        remarks.append(
            f"requests waited {1000 * statistics.fmean(waits_s):.1f} ms (mean) for their turn, at"
            f" most {1000 * max(waits_s):.1f} ms; no latency includes that"
        )
    overheads = [
        record.ttft_ms - record.server_ttft_ms
        for record in records
        if record.ttft_ms is not None and record.server_ttft_ms is not None
    ]
    if overheads:
        median_ms = statistics.median(overheads)
        remarks.append(f"client: TTFT is {median_ms:.2f} ms (median) above the scheduler's own")
    per_message = result.values("tokens_per_message")
    if max(per_message) > 1.005:
        remarks.append(
            f"messages bring {max(per_message):.2f} tokens: ITL is the gap between messages"
        )
    return remarks


def _route(result: BenchResult) -> list[dict[str, object]]:
    return [worker for worker in result.server["workers"] if "stage_index" in worker]


def _setup(result: BenchResult) -> dict[str, object]:
    """Return what of the mesh decides how fast it is."""
    names = ("version", "chunk_strategy", "chunked_prefill_tokens", "page_tokens")
    setup = {name: result.server.get(name) for name in names}
    for worker in _route(result):
        told = {name: worker.get(name) for name in ("layers", "device", "backends")}
        setup[f"stage {worker['stage_index']}"] = told
    return setup


def _program(result: BenchResult) -> dict[str, object]:
    return {name: result.origin.get(name) for name in ("version", "commit", "client")}


def _span(values: Sequence[float]) -> str:
    """Return the median, and of several values the least and the greatest."""
    median = _figure(statistics.median(values))
    if min(values) == max(values):
        return median
    return f"{median} ({_figure(min(values))} - {_figure(max(values))})"


def _figure(value: float) -> str:
    """Return four significant digits, and whole numbers as they are."""
    if float(value).is_integer() or not math.isfinite(value):
        return f"{value:.0f}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 4)}f}"
