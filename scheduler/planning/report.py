"""Plans as text and tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from chunkmesh.cli.output import print_table
from chunkmesh.cli.partition import inclusive
from scheduler.planning.communication import Communication
from scheduler.planning.footprint import Footprint
from scheduler.planning.model_shape import ModelShape
from scheduler.planning.plan import Plan
from scheduler.planning.survey import Survey
from scheduler.planning.token_text import short_count


def print_plans(console: Console, survey: Survey) -> None:
    """Print one pipeline: its stages, what strategies make of prompts, and what is moved."""
    console.print(headline(survey), soft_wrap=True)
    for group in survey.groups():
        print_table(console, strategy_table(group))
    if survey.subject.shape is None:
        console.print("bytes are not told: the latency is of a model without a name, give --model")
        return
    print_table(console, stage_table(survey, survey.subject.shape))
    print_table(console, communication_table(survey, survey.subject.shape))


def print_sweep(console: Console, survey: Survey) -> None:
    """Print many pipelines, one line each."""
    console.print(headline(survey), soft_wrap=True)
    print_table(console, sweep_table(survey))
    if survey.skipped_stages:
        skipped = ", ".join(map(str, survey.skipped_stages))
        console.print(
            f"left out: {skipped} stages, more than the {survey.latency.num_layers} layers"
        )


def headline(survey: Survey) -> str:
    """Say what is planned for."""
    shape, latency, options = survey.subject.shape, survey.latency, survey.options
    size = f", {shape.parameters(shape.whole) / 1e9:.3g} B parameters" if shape else ""
    source = "ESTIMATE, scaled from" if latency.is_estimate else "as measured:"
    prompts = (
        "one prompt" if options.num_requests == 1 else f"{options.num_requests} prompts in a row"
    )
    link = f"links {options.link.gbits_per_s:g} Gbit/s and {options.link.latency_us:g} us"
    lines = [
        f"model     {survey.subject.name}: {latency.num_layers} layers{size}",
        f"latency   {source} {latency.origin}",
        f"mesh      {options.overhead_ms:g} ms a microbatch and stage, {link}, {prompts}",
    ]
    longest, own = max(options.prompt_tokens), survey.subject.context_tokens
    if own is not None and longest > own:
        made_for = f"the {own} that config.json states"
        lines.append(f"context   {short_count(longest)} tokens are more than {made_for}")
    return "\n".join(lines)


def strategy_table(plans: tuple[Plan, ...]) -> Table:
    """Return a row a strategy, all for the same pipeline and prompts."""
    first = plans[0]
    cluster, load = first.cluster, first.load
    table = Table(
        title=f"{load.prompt_tokens} tokens on {cluster.num_stages} stages;"
        f" one stage: {_seconds(cluster.single_stage_ms(load))}",
        title_justify="left",
    )
    for name in ("strategy", "set to", "chunks"):
        table.add_column(name)
    last = ("last TTFT",) if load.num_requests > 1 else ()
    for name in ("TTFT", *last, "tokens/s", "bubble", "speed-up", "efficiency"):
        table.add_column(name, justify="right")
    for plan in plans:
        table.add_row(
            plan.cuts.strategy.value,
            parameters_text(plan),
            chunks_text(plan),
            _seconds(plan.ttft_ms),
            *(_seconds(plan.finish_ms) for _ in last),
            f"{plan.throughput_tokens_s:.0f}",
            f"{plan.bubble_ratio:.1%}",
            f"{plan.speedup:.2f} x",
            f"{plan.efficiency:.1%}",
        )
    return table


def stage_table(survey: Survey, shape: ModelShape) -> Table:
    """Return a row a stage: layers, weights, and KV of one prompt of each length."""
    ofs = [_footprint(survey, group[0], shape) for group in survey.groups()]
    longest = max(ofs, key=lambda each: each.largest_bytes)
    table = Table("stage", "layers", title="bytes on each stage", title_justify="left")
    table.add_column("weights", justify="right")
    for tokens in survey.options.prompt_tokens:
        table.add_column(f"KV of {short_count(tokens)} tokens", justify="right")
    table.add_column(f"sum at {short_count(max(survey.options.prompt_tokens))}", justify="right")
    for stage, layers in enumerate(survey.plans[0].cluster.ranges):
        table.add_row(
            str(stage),
            inclusive(layers),
            _bytes(ofs[0].weight_bytes[stage]),
            *(_bytes(each.kv_bytes[stage]) for each in ofs),
            _bytes(longest.stage_bytes[stage]),
        )
    return table


def communication_table(survey: Survey, shape: ModelShape) -> Table:
    """Return what a prompt moves, by the formulas, and how long that keeps a link busy."""
    num_devices = survey.plans[0].cluster.num_stages
    table = Table(
        title=f"bytes moved for one prompt on {num_devices} devices, and that time on one link;"
        " a pipeline sends beside computing",
        title_justify="left",
    )
    table.add_column("tokens", justify="right")
    for name in ("each pipeline link", "pipeline", "tensor parallel", "context parallel"):
        table.add_column(name, justify="right")
    bytes_per_s = survey.options.link.gbits_per_s * 1e9 / 8
    for tokens in survey.options.prompt_tokens:
        moved = Communication.of(
            shape,
            prompt_tokens=tokens,
            num_devices=num_devices,
            element_bytes=survey.options.element_bytes,
        )
        cells = (
            f"{_bytes(each)}, {_seconds(1000 * each / bytes_per_s)}"
            for each in (
                moved.link_bytes,
                moved.pipeline_bytes,
                moved.tensor_bytes,
                moved.context_bytes,
            )
        )
        table.add_row(short_count(tokens), *cells)
    return table


def sweep_table(survey: Survey) -> Table:
    """Return a row for each pipeline and prompt length."""
    strategies, shape = survey.options.strategies, survey.subject.shape
    last = strategies[-1].value
    table = Table(
        title=f"TTFT in s of each strategy; chunks and what follows are those of {last};"
        " GB are weights and KV of one prompt on the fullest stage",
        title_justify="left",
    )
    for name in (
        "stages",
        "tokens",
        *(strategy.replace("-", "\n") for strategy in strategies),
        *("chunks", "tokens\n/s", "bubble", "speed-\nup", "effi-\nciency"),
        *(("GB a\nstage",) if shape is not None else ()),
    ):
        table.add_column(name, justify="right")
    for group in survey.groups():
        plan = group[-1]
        table.add_row(
            str(plan.cluster.num_stages),
            short_count(plan.load.prompt_tokens),
            *(f"{each.ttft_ms / 1000:.{_digits(each.ttft_ms)}f}" for each in group),
            str(len(plan.chunk_tokens)),
            f"{plan.throughput_tokens_s:.0f}",
            f"{plan.bubble_ratio:.1%}",
            f"{plan.speedup:.2f}x",
            f"{plan.efficiency:.1%}",
            *((f"{_footprint(survey, plan, shape).largest_bytes / 1e9:.1f}",) if shape else ()),
        )
    return table


def parameters_text(plan: Plan) -> str:
    """Return what was set, or found."""
    parameters = plan.cuts.parameters
    if "slot_ms" in parameters:
        return f"{parameters['slot_ms']:.1f} ms"
    return ", ".join(f"{value:g}" for value in parameters.values())


def chunks_text(plan: Plan) -> str:
    """Return number and sizes of the first prompt's chunks."""
    sizes = plan.chunk_tokens
    ends = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} .. {sizes[-1]}"
    return f"{len(sizes)}: {ends}"


def _footprint(survey: Survey, plan: Plan, shape: ModelShape) -> Footprint:
    """Count what a plan's prompt leaves where."""
    options = survey.options
    return Footprint.of(
        plan,
        shape,
        page_tokens=options.chunks.page_tokens,
        element_bytes=options.element_bytes,
    )


def _seconds(ms: float) -> str:
    """Write a time with four or more digits."""
    return f"{ms / 1000:.{_digits(ms)}f} s"


def _digits(ms: float) -> int:
    """Return how many digits stand behind the point of a time in seconds."""
    return 1 if ms >= 100_000 else 2 if ms >= 10_000 else 3


def _bytes(count: int) -> str:
    """Write a number of bytes with three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
