"""The flags of `chunkmesh bench serve`, named as those of vLLM's and SGLang's benchmarks are.

Source: https://docs.vllm.ai/en/latest/cli/bench/serve/,
https://docs.sglang.ai/developer_guide/bench_serving.html
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.cli.flags import MAX_UINT32

_MAX_PROMPTS = 1_000_000


class DatasetName(enum.StrEnum):
    """Where prompts come from."""

    RANDOM = "random"
    SHARED_PREFIX = "shared-prefix"
    FILE = "file"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """What is sent."""

    dataset_name: Annotated[
        DatasetName,
        typer.Option(help="Random ids, random ids with prefixes in common, or a file's prompts."),
    ] = DatasetName.RANDOM
    dataset_path: Annotated[
        Path | None,
        typer.Option(
            help="file: JSON lines with a prompt, which is text or token ids, and maybe output_len."
        ),
    ] = None
    num_prompts: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_MAX_PROMPTS, help="Requests. Default: 100, or a whole file."
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of prompts, lengths and arrivals.")
    ] = 0
    random_input_len: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_UINT32, help="random: tokens of a prompt.")
    ] = 1024
    random_output_len: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_UINT32, help="random: tokens of an output.")
    ] = 128
    random_range_ratio: Annotated[
        float,
        typer.Option(
            metavar="R",
            min=0.0,
            max=0.999,
            help="random: draw both lengths between 1 - R and 1 + R of these, as vLLM does.",
        ),
    ] = 0.0
    gsp_num_groups: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_PROMPTS, help="shared-prefix: prefixes.")
    ] = 8
    gsp_system_prompt_len: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=MAX_UINT32, help="shared-prefix: tokens of each."),
    ] = 1024
    gsp_question_len: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MAX_UINT32, help="shared-prefix: tokens of a prompt's own."
        ),
    ] = 128
    gsp_output_len: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MAX_UINT32, help="shared-prefix: tokens of an output."
        ),
    ] = 128
    output_len: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MAX_UINT32, help="file: tokens of outputs where it names none."
        ),
    ] = 128


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """When and how it is sent."""

    request_rate: Annotated[
        float,
        typer.Option(metavar="RATE", help="Requests a second; inf sends all at once."),
    ] = float("inf")
    burstiness: Annotated[
        float,
        typer.Option(help="1: Poisson arrivals; less: bursts; more: more even; inf: a clock."),
    ] = 1.0
    max_concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most requests at a time; others wait for a turn."),
    ] = None
    num_warmups: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Requests before, one after the other, that do not count."
        ),
    ] = 1
    num_runs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Play it all so often, for the spread.")
    ] = 1
    duration: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="Cut a run short after this time."),
    ] = None
    request_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="A request fails after this time.")
    ] = 1800.0
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0
    disable_ignore_eos: Annotated[
        bool,
        typer.Option(
            "--disable-ignore-eos", help="Let end tokens end outputs before their length."
        ),
    ] = False
    cache_salt: Annotated[
        str | None,
        typer.Option(
            help="Share cached prefixes with requests of this salt. Default: a new one each run,"
            " so that no run finds what an earlier one has cached."
        ),
    ] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What is told, and kept."""

    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC:MS",
            help="Count requests within these, as ttft:500 (tpot, itl, e2el); may be given several"
            " times.",
        ),
    ] = None
    percentile_metrics: Annotated[str, typer.Option(help="Latencies that the table shows.")] = (
        "ttft,tpot,itl,e2el"
    )
    metric_percentiles: Annotated[
        str, typer.Option(help="Their percentiles, beside mean and median.")
    ] = "90,99"
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Write a result file named after the time.")
    ] = False
    result_filename: Annotated[
        Path | None, typer.Option(help="Write the result to this file, for bench compare.")
    ] = None
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="Keep every request in it, for bench plot.")
    ] = False
    plot: Annotated[
        Path | None, typer.Option(help="Draw latencies and throughput: FILE.svg or FILE.png.")
    ] = None
    allow_failures: Annotated[
        bool, typer.Option("--allow-failures", help="End with 0 even where requests failed.")
    ] = False
