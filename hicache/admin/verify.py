"""The command `hicache-admin verify`: reads pages back from Redis and checks them."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.progress import Progress

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import DAY_S, WORK_S, HiCache, ask
from hicache.admin.consent import Consent, amount_text
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND
from hicache.admin.output import print_values
from hicache.admin.prompts import GivenPrompt
from hicache.admin.selection import Given, select

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def verify(
    context: typer.Context,
    *,
    given: Given,
    prompt: GivenPrompt,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Read pages back and check them, all if none are chosen; status 1 if one is bad.

    Missing and damaged pages are forgotten with all below them, but not with --dry-run.
    """
    consent.check()
    selection = select(context, given, prompt, or_all=True)
    if not (consent.yes or consent.dry_run):
        counting = pb.PinRequest(selection=selection, dry_run=True)
        amount = ask(context, lambda hicache: hicache.Pin(counting, timeout=WORK_S))
        if amount.num_pages:
            consent.ask(f"Check {amount_text(amount)}, and forget those that are bad?")
    request = pb.VerifyRequest(selection=selection, dry_run=consent.dry_run)
    last, bad = ask(context, lambda hicache: _verified(hicache, request))
    values: dict[str, object] = {
        "dry_run": consent.dry_run,
        "num_pages": last.num_pages,
        "num_checked": last.num_checked,
        "num_bytes": last.num_bytes,
        "num_missing": last.num_missing,
        "num_damaged": last.num_damaged,
        "bad_digests": [digest.hex() for digest in bad],
    }
    if not as_json:
        values["bad_digests"] = "\n".join(digest.hex() for digest in bad) or "none"
    print_values(values, as_json=as_json)
    if last.num_missing or last.num_damaged:
        raise typer.Exit(EXIT_ERROR)
    if not last.num_pages:
        raise typer.Exit(EXIT_NOT_FOUND)


def _verified(hicache: HiCache, request: pb.VerifyRequest) -> tuple[pb.VerifyResponse, list[bytes]]:
    """Show progress on standard error; return the last message and all bad pages."""
    bad: list[bytes] = []
    last = pb.VerifyResponse()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking pages", total=None)
        for last in hicache.Verify(request, timeout=DAY_S):
            bad += last.bad_digests
            progress.update(task, total=last.num_pages, completed=last.num_checked)
    return last, bad
