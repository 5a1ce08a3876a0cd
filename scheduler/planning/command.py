"""The command `chunkmesh plan`: what a pipeline would do with long prompts, without one."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.exits import reported
from chunkmesh.cli.output import output_console
from chunkmesh.cli.partition import Partition, parse_ranges
from chunkmesh.errors import ConfigError, reason_of
from scheduler.planning import flags, gantt, report
from scheduler.planning.cuts import ChunkSettings, Strategy
from scheduler.planning.latency_source import BUILT_IN, find_subject
from scheduler.planning.options import (
    LinkOptions,
    PlanOptions,
    SweepRanges,
    check_picture,
    parse_sweep,
    parse_tokens,
)
from scheduler.planning.plan_json import as_json
from scheduler.planning.survey import Survey, survey
from scheduler.planning.token_text import short_count

_DEFAULT_STAGES = 4
_DEFAULT_TOKENS = "128K"
_PROGRESS_PAUSE_S = 2.0

app = typer.Typer()


@app.command(cls=Command)
def plan(
    *,
    model: flags.Model = None,
    latency_model: flags.LatencyModel = BUILT_IN,
    stages: flags.Stages = None,
    layers: flags.Layers = None,
    partition: flags.Partition = Partition.EVEN,
    link_gbps: flags.LinkGbps = 400.0,
    link_latency_us: flags.LinkLatencyUs = 100.0,
    overhead_ms: flags.OverheadMs = 0.5,
    pp_async_batch_depth: flags.PpAsyncBatchDepth = 0,
    tokens: flags.Tokens = None,
    num_requests: flags.NumRequests = 1,
    page_size: flags.PageSize = 128,
    chunked_prefill_size: flags.ChunkedPrefillSize = 4096,
    dynamic_chunking_smooth_factor: flags.SmoothFactor = 0.75,
    max_chunk_ms: flags.MaxChunkMs = None,
    chunk_alignment: flags.ChunkAlignment = 0,
    context_length: flags.ContextLength = None,
    strategy: flags.Strategy = None,
    element_bytes: flags.ElementBytes = 2,
    sweep: flags.Sweep = None,
    picture: flags.Picture = None,
    lanes: flags.Lanes = False,
    json_output: flags.JsonOutput = False,
) -> None:
    """Plan the prefill of long prompts on a pipeline that need not exist; needs no GPU, no mesh."""
    with reported():
        ranges = SweepRanges() if sweep is None else parse_sweep(sweep)
        _check_stages(stages, layers, partition, ranges)
        _check_output(picture, is_sweep=sweep is not None, lanes=lanes, json_output=json_output)
        named = None if layers is None else parse_ranges(layers)
        prompt_tokens = _prompt_tokens(tokens, ranges)
        _check_context(context_length, prompt_tokens)
        subject = find_subject(model, latency_model)
        options = PlanOptions(
            num_stages=ranges.num_stages or (len(named or ()) or stages or _DEFAULT_STAGES,),
            layers=named,
            partition=partition,
            prompt_tokens=prompt_tokens,
            num_requests=num_requests,
            link=LinkOptions(gbits_per_s=link_gbps, latency_us=link_latency_us),
            overhead_ms=overhead_ms,
            pp_async_batch_depth=pp_async_batch_depth,
            chunks=ChunkSettings(
                page_tokens=page_size,
                chunked_prefill_tokens=chunked_prefill_size,
                smooth_factor=dynamic_chunking_smooth_factor,
                max_chunk_ms=max_chunk_ms,
                chunk_alignment_tokens=chunk_alignment,
                context_tokens=context_length or subject.context_tokens,
            ),
            strategies=tuple(name for name in Strategy if name in (strategy or Strategy)),
            element_bytes=element_bytes,
        )
        shown = None if sweep is None else _SweepProgress().show
        made = survey(subject, options, simulate=sweep is None, on_cell=shown)
        if picture is not None:
            _draw(made, picture, is_sweep=sweep is not None)
        _show(made, is_sweep=sweep is not None, lanes=lanes, json_output=json_output)


def _check_stages(
    stages: int | None, layers: str | None, partition: Partition, ranges: SweepRanges
) -> None:
    """Refuse flags that say the same thing twice."""
    given = {
        "--stages": stages is not None,
        "--layers": layers is not None,
        "--sweep stages": ranges.num_stages is not None,
    }
    twice = [name for name, is_given in given.items() if is_given]
    if len(twice) > 1:
        raise ConfigError(f"{' and '.join(twice)} exclude each other")
    if layers is not None and partition is Partition.AUTO:
        raise ConfigError("--layers and --partition auto exclude each other")


def _check_output(picture: Path | None, *, is_sweep: bool, lanes: bool, json_output: bool) -> None:
    """Refuse an output that cannot be, before minutes of planning."""
    if lanes and json_output:
        raise ConfigError("--lanes and --json exclude each other")
    if lanes and is_sweep:
        raise ConfigError("--lanes and --sweep exclude each other: give --stages and --tokens")
    if picture is not None:
        check_picture(picture)


def _prompt_tokens(tokens: str | None, ranges: SweepRanges) -> tuple[int, ...]:
    """Return the lengths of prompts, by one flag or the other."""
    if ranges.prompt_tokens is None:
        return parse_tokens(_DEFAULT_TOKENS if tokens is None else tokens)
    if tokens is not None:
        raise ConfigError("--tokens and --sweep tokens exclude each other")
    return ranges.prompt_tokens


def _check_context(context_length: int | None, prompt_tokens: Sequence[int]) -> None:
    """Refuse prompts that a mesh of this context would refuse."""
    longest = max(prompt_tokens)
    if context_length is not None and longest >= context_length:
        raise ConfigError(
            f"--context-length {context_length}: must be above the {longest} tokens of the longest"
            " prompt"
        )


class _SweepProgress:
    """Tells on standard error how far a sweep is, for it may take minutes."""

    def __init__(self) -> None:
        """Begin with the first one."""
        self._due_s = 0.0

    def show(self, num_stages: int, prompt_tokens: int) -> None:
        """Tell what is done, if nothing was told lately."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _PROGRESS_PAUSE_S
            tokens = short_count(prompt_tokens)
            sys.stderr.write(f"planned so far: stages={num_stages}, tokens={tokens}\n")


def _show(made: Survey, *, is_sweep: bool, lanes: bool, json_output: bool) -> None:
    """Print what was planned."""
    if json_output:
        print(as_json(made))
        return
    console = output_console()
    if is_sweep:
        report.print_sweep(console, made)
    else:
        report.print_plans(console, made)
    if lanes:
        for each in made.plans:
            print(f"\n{gantt.lanes(each, width=console.width)}")


def _draw(made: Survey, path: Path, *, is_sweep: bool) -> None:
    """Write the picture.

    Raises:
        ConfigError: matplotlib is missing, the file cannot be written, or a plan is too large.
    """
    try:
        from chunkmesh.cli import timeline_picture  # noqa: PLC0415 - matplotlib comes with an extra
        from scheduler.planning.sweep_picture import save_sweep  # noqa: PLC0415 - and here
    except ImportError as error:
        raise ConfigError("--picture needs matplotlib: pip install 'chunkmesh[demo]'") from error
    try:
        if is_sweep:
            save_sweep(made, path)
        else:
            panels = [
                timeline_picture.Panel(title=gantt.title(each), timeline=gantt.timeline(each))
                for each in made.plans
            ]
            is_one_length = len(made.options.prompt_tokens) == 1
            timeline_picture.save(panels, path, share_time=is_one_length)
    except OSError as error:
        raise ConfigError(f"--picture {path}: {reason_of(error)}") from error
    noun = "plan" if len(made.plans) == 1 else "plans"
    sys.stderr.write(f"{path}: {len(made.plans)} {noun}\n")
