"""The command `hicache-admin ls`: whose pages are cached, a namespace a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags, namespaces
from hicache.admin.exits import EXIT_NOT_FOUND, EXIT_USAGE, fail
from hicache.admin.output import layer_pairs, layers_text, print_json, print_rows, short
from hicache.admin.units import size_text

app = typer.Typer()
_HEAD = (
    *("namespace", "model", "fingerprint", "dtype", "page tokens", "salted", "layers"),
    *("pages", "partial", "bytes", "quota", "pinned", "hits"),
)


@app.command(cls=Command)
def ls(
    context: typer.Context,
    *,
    namespace: Annotated[
        str | None, typer.Option(metavar="HEX", help="Only this one, by its first digits.")
    ] = None,
    salt: flags.Salt = None,
    scheduler: flags.Scheduler = flags.SCHEDULER,
    as_json: flags.Json = False,
) -> None:
    """List namespaces: model, fingerprint, dtype, page size, layers, pages, bytes, quota, hits."""
    if namespace is not None and salt is not None:
        fail("give either --namespace or --salt", EXIT_USAGE)
    states = namespaces.listed(context)
    if namespace is not None:
        chosen = namespaces.named(context, "--namespace", namespace)
        states = _only(states, chosen, f"--namespace: {namespace}")
    if salt is not None:
        states = _only(states, namespaces.of_salt(scheduler, salt), f"--salt: {salt!r}")
    if as_json:
        print_json({"namespaces": [_values(state) for state in states]})
    else:
        print_rows(_HEAD, map(_row, states))


def _only(states: Sequence[pb.NamespaceState], chosen: bytes, said: str) -> list[pb.NamespaceState]:
    """Return the chosen one; ends the command if nothing of it is there."""
    found = [state for state in states if state.namespace == chosen]
    if not found:
        fail(f"{said} is not cached", EXIT_NOT_FOUND)
    return found


def _values(state: pb.NamespaceState) -> dict[str, object]:
    info = state.info
    return {
        "namespace": state.namespace.hex(),
        "known": state.HasField("info"),
        "fingerprint": info.fingerprint.hex(),
        "model": info.model,
        "kv_dtype": info.kv_dtype,
        "page_tokens": info.page_tokens,
        "rope": info.rope,
        "adapter": info.adapter,
        "salted": info.salted,
        "model_layers": state.model_layers,
        "layers": layer_pairs(state.layers),
        "num_pages": state.num_pages,
        "num_partial_pages": state.num_partial_pages,
        "num_bytes": state.num_bytes,
        "num_pinned_pages": state.num_pinned_pages,
        "quota_bytes": state.quota_bytes,
        "num_hits": state.num_hits,
    }


def _row(state: pb.NamespaceState) -> tuple[str, ...]:
    info = state.info
    return (
        short(state.namespace),
        info.model or "?",
        short(info.fingerprint) or "?",
        info.kv_dtype or "?",
        str(info.page_tokens or "?"),
        namespaces.salt_text(state),
        f"{layers_text(state.layers) or 'none'} of {state.model_layers}",
        str(state.num_pages),
        str(state.num_partial_pages),
        size_text(state.num_bytes),
        size_text(state.quota_bytes) if state.quota_bytes else "none",
        str(state.num_pinned_pages),
        str(state.num_hits),
    )
