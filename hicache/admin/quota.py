"""The commands `hicache-admin quota list|set|unset`: how many bytes a namespace may take."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command, Group
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.pages import DIGEST_BYTES
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags, namespaces
from hicache.admin.calls import WORK_S, ask
from hicache.admin.consent import Consent, amount_text
from hicache.admin.exits import EXIT_NOT_FOUND, fail, parsed
from hicache.admin.output import print_json, print_rows, print_values, short
from hicache.admin.units import parse_size, size_text

app = typer.Typer(cls=Group, help="Bound the bytes of a namespace.", no_args_is_help=True)

_Target = Annotated[
    str,
    typer.Argument(
        metavar="SALT-OR-NAMESPACE",
        help="Hex digits with which a known namespace begins, or else a cache_salt; "
        "'' is the namespace without salt.",
    ),
]


@app.command("list", cls=Command)
def list_quotas(context: typer.Context, as_json: flags.Json = False) -> None:
    """List the namespaces that have a quota."""
    states = [state for state in namespaces.listed(context) if state.quota_bytes]
    if as_json:
        print_json({"quotas": [_values(state) for state in states]})
        return
    rows = (
        (
            *(short(state.namespace), state.info.model or "?", namespaces.salt_text(state)),
            *(size_text(state.quota_bytes), size_text(state.num_bytes)),
        )
        for state in states
    )
    print_rows(("namespace", "model", "salted", "quota", "bytes"), rows)


@app.command("set", cls=Command)
@takes_options
def set_quota(
    context: typer.Context,
    target: _Target,
    size: Annotated[str, typer.Argument(help="Most bytes, values only: 10GiB, 512MiB.")],
    *,
    scheduler: flags.Scheduler = flags.SCHEDULER,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Bound the bytes of a namespace; what is over the bound goes at once."""
    max_bytes = parsed("SIZE", size, parse_size)
    consent.check()
    namespace, said = _resolve(context, target, scheduler)
    if not any(state.namespace == namespace for state in namespaces.listed(context)):
        sys.stderr.write(f"nothing of {said} is cached yet\n")
    wanted = f"Bound {said} to {size_text(max_bytes)}"
    _change(context, consent, namespace, max_bytes, wanted, as_json=as_json)


@app.command("unset", cls=Command)
@takes_options
def unset_quota(
    context: typer.Context,
    target: _Target,
    *,
    scheduler: flags.Scheduler = flags.SCHEDULER,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """End the bound of a namespace; status 3 if it has none."""
    consent.check()
    namespace, said = _resolve(context, target, scheduler)
    if not any(s.namespace == namespace and s.quota_bytes for s in namespaces.listed(context)):
        fail(f"{said} has no quota", EXIT_NOT_FOUND)
    _change(context, consent, namespace, 0, f"End the quota of {said}", as_json=as_json)


def _resolve(context: typer.Context, target: str, scheduler: str) -> tuple[bytes, str]:
    """Return a namespace and what to call it."""
    digits = target.lower()
    if len(digits) >= namespaces.MIN_DIGITS and set(digits) <= set("0123456789abcdef"):
        known = {state.namespace for state in namespaces.listed(context)}
        if len(digits) == 2 * DIGEST_BYTES:
            known.add(bytes.fromhex(digits))
        found = [each for each in known if each.hex().startswith(digits)]
        if len(found) == 1:
            return found[0], f"namespace {short(found[0])}"
    namespace = namespaces.of_salt(scheduler, target)
    return namespace, f"salt {target!r} (namespace {short(namespace)})"


def _change(
    context: typer.Context,
    consent: Consent,
    namespace: bytes,
    max_bytes: int,
    wanted: str,
    *,
    as_json: bool,
) -> None:
    def change(dry: bool) -> pb.SetQuotaResponse:
        request = pb.SetQuotaRequest(namespace=namespace, max_bytes=max_bytes, dry_run=dry)
        return ask(context, lambda hicache: hicache.SetQuota(request, timeout=WORK_S))

    if not consent.yes:
        reply = change(True)
        if not consent.dry_run:
            consent.ask(f"{wanted}, which deletes {amount_text(reply)}?")
    if not consent.dry_run:
        reply = change(False)
    named: dict[str, object] = {"dry_run": consent.dry_run, "namespace": namespace.hex()}
    if as_json:
        amount = {"num_pages": reply.num_pages, "num_bytes": reply.num_bytes}
        print_json({**named, "quota_bytes": max_bytes, **amount})
        return
    quota = size_text(max_bytes) if max_bytes else "none"
    evicted = {"evicted_pages": reply.num_pages, "evicted_bytes": reply.num_bytes}
    print_values({**named, "quota": quota, **evicted}, as_json=False)


def _values(state: pb.NamespaceState) -> dict[str, object]:
    return {
        "namespace": state.namespace.hex(),
        "model": state.info.model,
        "salted": state.info.salted,
        "quota_bytes": state.quota_bytes,
        "num_bytes": state.num_bytes,
    }
