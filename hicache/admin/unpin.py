"""The command `hicache-admin unpin`: ends pins."""

from __future__ import annotations

import typer

from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import WORK_S, ask
from hicache.admin.consent import Consent, print_change
from hicache.admin.prompts import GivenPrompt
from hicache.admin.selection import Given, select

app = typer.Typer()


@app.command()
def unpin(
    context: typer.Context,
    *,
    prefix: flags.Prefix = None,
    namespace: flags.Namespace = None,
    salt: flags.Salt = None,
    text: flags.Text = None,
    prompt_file: flags.PromptFile = None,
    tokens: flags.Tokens = None,
    cache_salt: flags.CacheSalt = "",
    everything: flags.All = False,
    scheduler: flags.Scheduler = flags.SCHEDULER,
    dry_run: flags.DryRun = False,
    yes: flags.Yes = False,
    as_json: flags.Json = False,
) -> None:
    """End the pins of chosen pages; status 3 if none of them is pinned."""
    consent = Consent(dry_run=dry_run, yes=yes)
    consent.check()
    given = Given(
        prefix=prefix,
        namespace=namespace,
        salt=salt,
        prompt=GivenPrompt(
            text=text, prompt_file=prompt_file, tokens=tokens, cache_salt=cache_salt
        ),
        everything=everything,
        scheduler=scheduler,
    )
    request = pb.UnpinRequest(selection=select(context, given))

    def change(dry: bool) -> pb.UnpinResponse:
        request.dry_run = dry
        return ask(context, lambda hicache: hicache.Unpin(request, timeout=WORK_S))

    reply = consent.changed(change, "Unpin")
    print_change(
        {"dry_run": dry_run, "num_pages": reply.num_pages, "num_bytes": reply.num_bytes},
        as_json=as_json,
    )
