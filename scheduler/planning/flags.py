"""The flags of `chunkmesh plan`, each with its help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.cli.partition import Partition as PartitionName
from scheduler.planning.cuts import Strategy as StrategyName
from scheduler.planning.known_shapes import KNOWN_CONFIGS
from scheduler.planning.latency_source import BUILT_IN, PRODUCTS
from scheduler.planning.options import MAX_STAGES

_MAX_REQUESTS = 256

Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|PATH",
        help=f"{', '.join(KNOWN_CONFIGS)}, a model folder or a config.json;"
        " names also as on a hub, such as Qwen/Qwen3-32B. Default: the model of the latency.",
    ),
]
LatencyModel = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help=f"What a stage takes: {BUILT_IN} (scaled to other models: an estimate), {PRODUCTS}"
        " (without launching and reading memory: only shares are true), a latency file, or a JSON"
        " table of one layer with rows of tokens, tokens before them, ms.",
    ),
]
Stages = Annotated[
    int | None, typer.Option(min=1, max=MAX_STAGES, help="Stages of the pipeline. Default 4.")
]
Layers = Annotated[
    str | None, typer.Option(help="Layers of each stage, such as 0-17,18-35; instead of --stages.")
]
Partition = Annotated[
    PartitionName,
    typer.Option(
        help="even: as many layers each, the remainder at later stages; auto: the slowest stage as"
        " fast as can be with the longest prompt, embedding and head counted."
    ),
]
LinkGbps = Annotated[
    float,
    typer.Option(min=0.001, max=1e9, help="Bandwidth of each link between stages, in Gbit/s."),
]
LinkLatencyUs = Annotated[
    float, typer.Option(min=0, max=1e9, help="From the end of a send to the arrival.")
]
OverheadMs = Annotated[
    float,
    typer.Option(min=0, max=1e6, help="What the mesh takes of a stage for each microbatch."),
]
PpAsyncBatchDepth = Annotated[
    int,
    typer.Option(
        min=-MAX_STAGES, max=MAX_STAGES, help="Added to the in-flight window of stages + 1."
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,..",
        help="Prompt lengths. 128K is 131072, 1M is 1048576: K is 1024. Default 128K.",
    ),
]
NumRequests = Annotated[
    int,
    typer.Option(min=1, max=_MAX_REQUESTS, help="Prompts of each length that arrive together."),
]
PageSize = Annotated[int, typer.Option(min=1, max=1024, help="Tokens a page holds.")]
ChunkedPrefillSize = Annotated[
    int,
    typer.Option(
        min=1, max=1 << 24, help="Size of fixed chunks, and of the first of dynamic ones."
    ),
]
SmoothFactor = Annotated[
    float,
    typer.Option(
        "--dynamic-chunking-smooth-factor",
        min=0,
        max=1,
        help="How far dynamic chunks follow their model; 0 keeps them fixed.",
    ),
]
ContextLength = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1 << 25,
        help="As the scheduler's: dynamic chunks shrink near its end. Default: the model's own,"
        " where it holds the prompt.",
    ),
]
MaxChunkMs = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=1e9, help="Longest optimal chunk on a stage. Default: as the plan needs."
    ),
]
ChunkAlignment = Annotated[
    int,
    typer.Option(
        min=0,
        max=1 << 20,
        help="Lengths that optimal chunks are multiples of, as stages on GPUs tell the scheduler"
        " (512 on an H200 with 32 heads). Default: pages and 64.",
    ),
]
Strategy = Annotated[
    list[StrategyName] | None,
    typer.Option(help="Show only this one; may be given several times. Default: all."),
]
ElementBytes = Annotated[
    int,
    typer.Option(min=1, max=8, help="Bytes of a weight, an activation and an element of KV."),
]
Sweep = Annotated[
    str | None,
    typer.Option(
        metavar="stages=A..B,tokens=A..B",
        help="Plan all pipelines and prompts between, each twice the one before: a table of many.",
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(help="Draw chunks over stages, or a sweep's lines, as FILE.png or FILE.svg."),
]
Lanes = Annotated[bool, typer.Option("--lanes", help="Draw chunks over stages as text.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
