"""The commands `chunkmesh bench serve`, `compare` and `plot`: how fast a mesh serves a load."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.bench.comparison import cautions, check_workloads
from chunkmesh.bench.comparison import compare as compared
from chunkmesh.bench.result import BenchResult
from chunkmesh.bench.targets import METRICS, parse_targets
from chunkmesh.cli.bench_flags import DatasetOptions, LoadOptions, ReportOptions
from chunkmesh.cli.bench_plot import check_picture, draw
from chunkmesh.cli.bench_serve import Measures, serve_workload
from chunkmesh.cli.bench_tables import print_comparison, print_result, surroundings
from chunkmesh.cli.bench_workload import check_load
from chunkmesh.cli.command_shape import Command, Group
from chunkmesh.cli.exits import EXIT_FAILURE, EXIT_INTERRUPTED, reported
from chunkmesh.cli.generate_request import read_prompt
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.cli.output import output_console
from chunkmesh.cli.server_options import SchedulersOptions
from chunkmesh.errors import ConfigError, reason_of

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Measure how fast a mesh serves a load, and compare such measurements.",
)


@app.command(cls=Command)
@takes_options
def serve(
    *,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of tables.")
    ] = False,
    to: SchedulersOptions,
    dataset: DatasetOptions,
    load: LoadOptions,
    report: ReportOptions,
) -> None:
    """Send a load to a mesh and tell TTFT, TPOT, ITL, end-to-end latency and throughput.

    Ends with 1 if a request failed. Ctrl-C ends it early and shows what was measured.
    """
    with reported():
        check_load(load)
        metrics = _metrics(report.percentile_metrics)
        measures = Measures(
            percentiles=_percentiles(report.metric_percentiles),
            targets=parse_targets(report.goodput or ()),
        )
        if report.plot is not None:
            check_picture(report.plot, "--plot")
        result = serve_workload(to.servers(), dataset, load, measures)
        if json_output:
            print(json.dumps(result.as_json(with_records=report.save_detailed)))
        else:
            print_result(output_console(), result, metrics)
        _warn(result)
        _keep(result, report)
    if result.runs[-1].end == "interrupted":
        sys.stderr.write("[interrupted: the figures are of what ended before]\n")
        raise typer.Exit(EXIT_INTERRUPTED)
    if any(run.failures for run in result.runs) and not report.allow_failures:
        raise typer.Exit(EXIT_FAILURE)


@app.command(cls=Command)
def compare(
    base: Annotated[Path, typer.Argument(help="A result file.")],
    new: Annotated[Path, typer.Argument(help="The one that is held against it.")],
    *,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Compare unlike workloads all the same.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Hold two result files of one workload against each other.

    Ends with 2 if the workloads differ, and names the differences.
    """
    with reported():
        results = _read(base), _read(new)
        if not allow_different:
            check_workloads(*results)
        rows = compared(*results)
    names = str(base), str(new)
    for name, result in zip(names, results, strict=True):
        for caution in cautions(name, result):
            sys.stderr.write(f"warning: {caution}\n")
    if json_output:
        figures = [
            {
                "name": row.name,
                "base": row.base,
                "new": row.new,
                "ratio": row.ratio,
                "verdict": row.verdict,
            }
            for row in rows
        ]
        print(json.dumps({"differences": surroundings(*results), "figures": figures}))
    else:
        print_comparison(output_console(), names, results, rows)


@app.command(cls=Command)
def plot(
    results: Annotated[
        list[Path], typer.Argument(help="Result files with every request: --save-detailed.")
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.svg or FILE.png.")],
) -> None:
    """Draw TTFT, ITL and output tokens over time; several results lie over each other."""
    with reported():
        check_picture(output, "--output")
        draw([(path.stem, _read(path)) for path in results], output, "--output")


def _read(path: Path) -> BenchResult:
    return BenchResult.from_text(read_prompt(path), str(path))


def _metrics(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in METRICS:
            raise ConfigError(f"--percentile-metrics {word}: must be of {', '.join(METRICS)}")
    return words


def _percentiles(text: str) -> list[float]:
    try:
        percentiles = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--metric-percentiles {text}: must be numbers, as 90,99") from error
    for percentile in percentiles:
        if not 0 <= percentile <= 100:
            raise ConfigError(f"--metric-percentiles {percentile:g}: must be in [0, 100]")
    return percentiles


def _warn(result: BenchResult) -> None:
    """Say on standard error why the figures may not be what they seem."""
    for caution in cautions("this run", result):
        sys.stderr.write(f"warning: {caution}\n")
    for run in result.runs:
        for status, failure in run.failures.items():
            sys.stderr.write(f"{failure['count']} failed with {status}: {failure['example']}\n")
    is_random = result.workload["dataset"]["name"] == "random"
    if is_random and any(result.values("total_cached_tokens")):
        sys.stderr.write("warning: parts of random prompts were cached; give no --cache-salt\n")


def _keep(result: BenchResult, report: ReportOptions) -> None:
    """Write the files that were asked for.

    Raises:
        ConfigError: one cannot be written.
    """
    path = report.result_filename
    if path is None and report.save_result:
        path = Path(time.strftime("chunkmesh-bench-%Y%m%d-%H%M%S.json"))
    if path is not None:
        text = json.dumps(result.as_json(with_records=report.save_detailed), indent=1)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--result-filename {path}: {reason_of(error)}") from error
        sys.stderr.write(f"{path}: the result, for chunkmesh bench compare\n")
    if report.plot is not None:
        draw([("", result)], report.plot, "--plot")
