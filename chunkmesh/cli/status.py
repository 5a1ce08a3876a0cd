"""The command `chunkmesh status`: the mesh as its scheduler sees it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.exits import EXIT_FAILURE, reported
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.message_json import fields_of, layers_text
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.cli.output import output_console, print_table
from chunkmesh.cli.route_lines import epoch_text, place_text, route_lines, routes_text
from chunkmesh.cli.server_options import ServerOptions
from chunkmesh.cli.stage_fits import fit_lines, write_latency_model
from chunkmesh.v1 import generation_pb2 as pb

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def status(
    *,
    to: ServerOptions,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    save_latency_model: Annotated[
        Path | None,
        typer.Option(help="Write the stages' latencies to this file, for --latency-model."),
    ] = None,
) -> None:
    """Show the routes, workers, links, latencies and load of a mesh.

    Ends with 1 if the mesh is not ready.
    """
    address = to.address()
    with reported(), GenerationClient(address, to.access()) as client:
        info = client.server_info()
        if save_latency_model is not None:
            write_latency_model(info, client.model_info(), save_latency_model)
    if json_output:
        print(json.dumps(fields_of(info)))
    else:
        _show(info)
    if save_latency_model is not None:
        noun = "stage" if len(info.fits) == 1 else "stages"
        sys.stderr.write(f"{save_latency_model}: latencies of {len(info.fits)} {noun}\n")
    if not info.ready:
        raise typer.Exit(EXIT_FAILURE)


def _show(info: pb.GetServerInfoResponse) -> None:
    """Print all that is known."""
    console = output_console()
    console.print(summary(info), highlight=False, soft_wrap=True)
    print_table(console, worker_table(info))
    for line in (*route_lines(info), *fit_lines(info)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def summary(info: pb.GetServerInfoResponse) -> str:
    """Return the state of the whole mesh in a few lines."""
    used = info.num_pages - info.free_pages
    requests = (
        f"{info.num_requests_running} running, {info.num_requests_waiting} waiting,"
        f" {info.num_microbatches_in_flight} microbatches in flight"
    )
    lines = [
        f"mesh      {'ready' if info.ready else 'not ready: ' + info.reason}",
        f"version   {info.version}, epoch {epoch_text(info.epoch)}",
        f"routes    {routes_text(info)}",
        f"requests  {requests}",
        f"pages     {used} of {info.num_pages} in use, {info.page_tokens} tokens each",
        f"chunks    {chunks_text(info)}",
        f"cache     {info.cache_fault or 'ok'}",
        f"hits      {hits_text(info.cache)}",
    ]
    if info.missing_layers:
        missing = ", ".join(map(layers_text, info.missing_layers))
        lines.insert(1, f"missing   layers {missing}")
    return "\n".join(lines)


def chunks_text(info: pb.GetServerInfoResponse) -> str:
    """Return how prompts are cut, how long chunks are at most, and what they are multiples of."""
    text = f"{info.chunk_strategy}, at most {info.chunked_prefill_tokens} tokens"
    if info.chunk_alignment_tokens:
        text += f", multiples of {info.chunk_alignment_tokens}"
    return f"{text} ({info.chunk_strategy_reason})" if info.chunk_strategy_reason else text


def hits_text(cache: pb.CacheInfo) -> str:
    """Return what prompts did not have to compute, by tier, and how fast stages load."""
    tiers = (
        f"{cache.device_hit_tokens} tokens on devices ({cache.num_cached_pages} pages there now), "
        f"{cache.host_hit_tokens} in host memory"
    )
    if cache.num_host_pages:
        tiers += f" (now {cache.num_host_cached_pages} of {cache.num_host_pages} pages)"
    tiers += f", {cache.redis_hit_tokens} in Redis"
    speeds = _speeds(cache.load_bytes_per_s)
    if speeds:
        tiers += f"; loads at {speeds} MB/s"
    host_speeds = _speeds(cache.host_bytes_per_s)
    return f"{tiers}; from host memory at {host_speeds} MB/s" if host_speeds else tiers


def _speeds(bytes_per_s: Iterable[float]) -> str:
    """Return what stages have measured, in MB/s; empty if none has."""
    return ", ".join(f"{each / 1e6:.0f}" for each in bytes_per_s if each)


def worker_table(info: pb.GetServerInfoResponse) -> Table:
    """Return one row a worker."""
    table = Table(
        "route", "stage", "layers", "worker", "device", "data address", "KV tokens", "link to next"
    )
    for worker in info.workers:
        table.add_row(
            epoch_text(worker.epoch) if worker.HasField("epoch") else "",
            place_text(worker),
            layers_text(worker.layers),
            worker.worker_id,
            worker.device,
            worker.data_address,
            str(worker.kv_capacity_tokens),
            link_text(worker.outbound) if worker.HasField("outbound") else "",
        )
    return table


def link_text(link: pb.LinkInfo) -> str:
    """Return a link's transport and round trip."""
    return f"{link.transport}, {link.rtt_us / 1000:.2f} ms"
