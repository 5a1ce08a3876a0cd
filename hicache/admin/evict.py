"""The command `hicache-admin evict`: deletes chosen pages."""

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
def evict(
    context: typer.Context,
    *,
    prefix: flags.Prefix = None,
    older_than: flags.OlderThan = None,
    namespace: flags.Namespace = None,
    salt: flags.Salt = None,
    text: flags.Text = None,
    prompt_file: flags.PromptFile = None,
    tokens: flags.Tokens = None,
    cache_salt: flags.CacheSalt = "",
    scheduler: flags.Scheduler = flags.SCHEDULER,
    dry_run: flags.DryRun = False,
    yes: flags.Yes = False,
    as_json: flags.Json = False,
) -> None:
    """Delete chosen pages; leased and pinned ones stay, with what they hang on."""
    consent = Consent(dry_run=dry_run, yes=yes)
    consent.check()
    given = Given(
        prefix=prefix,
        older_than=older_than,
        namespace=namespace,
        salt=salt,
        prompt=GivenPrompt(
            text=text, prompt_file=prompt_file, tokens=tokens, cache_salt=cache_salt
        ),
        scheduler=scheduler,
    )
    request = pb.EvictRequest(selection=select(context, given))

    def change(dry: bool) -> pb.EvictResponse:
        request.dry_run = dry
        return ask(context, lambda hicache: hicache.Evict(request, timeout=WORK_S))

    reply = consent.changed(change, "Delete")
    print_change(
        {
            "dry_run": dry_run,
            "num_pages": reply.num_pages,
            "num_bytes": reply.num_bytes,
            "num_held_pages": reply.num_held_pages,
        },
        as_json=as_json,
        found=reply.num_pages + reply.num_held_pages > 0,
    )
