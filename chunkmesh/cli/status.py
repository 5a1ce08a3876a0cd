"""The command `chunkmesh status`: the mesh as its scheduler sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.table import Table

from chunkmesh.cli.exits import parse_server, reported
from chunkmesh.cli.flags import Server
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.output import output_console
from chunkmesh.cli.partition import inclusive
from chunkmesh.cli.stage_fits import fit_lines, write_latency_model
from chunkmesh.layers import LayerRange
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb

app = typer.Typer()


@app.command()
def status(
    *,
    server: Server = "127.0.0.1:50051",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    save_latency_model: Annotated[
        Path | None,
        typer.Option(help="Write the stages' latencies to this file, for --latency-model."),
    ] = None,
) -> None:
    """Show the stages, links, latencies and load of a mesh."""
    address = parse_server(server)
    with reported(), GenerationClient(address) as client:
        info = client.server_info()
        if save_latency_model is not None:
            write_latency_model(info, client.model_info(), save_latency_model)
    if json_output:
        fields = MessageToDict(
            info, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        print(json.dumps(fields))
        return
    console = output_console()
    console.print(summary(info), highlight=False, soft_wrap=True)
    console.print(worker_table(info))
    for line in fit_lines(info):
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
        f"version   {info.version}, epoch {info.epoch}",
        f"requests  {requests}",
        f"pages     {used} of {info.num_pages} in use, {info.page_tokens} tokens each",
        f"chunks    {info.chunk_strategy}, {info.chunked_prefill_tokens} tokens",
        f"cache     {info.cache_fault or 'ok'}",
        f"hits      {hits_text(info.cache)}",
    ]
    if info.chunk_strategy_reason:
        lines[4] += f" ({info.chunk_strategy_reason})"
    if info.missing_layers:
        missing = ", ".join(map(layers_text, info.missing_layers))
        lines.insert(1, f"missing   layers {missing}")
    return "\n".join(lines)


def hits_text(cache: pb.CacheInfo) -> str:
    """Return what prompts did not have to compute, by tier, and how fast stages load."""
    tiers = (
        f"{cache.device_hit_tokens} tokens on devices (now {cache.num_cached_pages} pages), "
        f"{cache.host_hit_tokens} in host memory, {cache.redis_hit_tokens} in Redis"
    )
    speeds = ", ".join(f"{each / 1e6:.0f}" for each in cache.load_bytes_per_s if each)
    return f"{tiers}; loads at {speeds} MB/s" if speeds else tiers


def worker_table(info: pb.GetServerInfoResponse) -> Table:
    """Return one row a worker."""
    table = Table(
        "stage", "layers", "worker", "device", "data address", "KV tokens", "link to next"
    )
    for worker in info.workers:
        table.add_row(
            str(worker.stage_index) if worker.HasField("stage_index") else "spare",
            layers_text(worker.layers),
            worker.worker_id,
            worker.device,
            worker.data_address,
            str(worker.kv_capacity_tokens),
            link_text(worker.outbound) if worker.HasField("outbound") else "",
        )
    return table


def layers_text(layers: common_pb2.LayerRange) -> str:
    """Return a range as users write it: 0-14."""
    return inclusive(LayerRange(first=layers.first, last=layers.last))


def link_text(link: pb.LinkInfo) -> str:
    """Return a link's transport and round trip."""
    return f"{link.transport}, {link.rtt_us / 1000:.2f} ms"
