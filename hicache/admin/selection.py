"""Which pages a command is about, from the flags that name them."""

from __future__ import annotations

import dataclasses

import typer

from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags, namespaces
from hicache.admin.exits import EXIT_USAGE, fail, parsed
from hicache.admin.prompts import GivenPrompt, tokenized
from hicache.admin.units import parse_duration_ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Flags that most commands choose pages with, beside a prompt."""

    prefix: flags.Prefix = None
    namespace: flags.Namespace = None
    salt: flags.Salt = None


def select(
    context: typer.Context,
    given: Given,
    prompt: GivenPrompt,
    *,
    older_than: str | None = None,
    everything: bool = False,
    or_all: bool = False,
) -> pb.Selection:
    """Turn flags into a selection, exactly one of which counts; --cache-salt goes with a prompt.

    or_all takes all pages if none is given.
    """
    named = (given.prefix, given.namespace, given.salt, older_than)
    num_given = sum(each is not None for each in named) + prompt.num_given + everything
    if num_given > 1 or not (num_given or or_all):
        fail(
            "give one of --prefix, --namespace, --salt, --older-than, --text, --prompt-file, "
            "--tokens and --all, as far as the command has them",
            EXIT_USAGE,
        )
    if given.prefix is not None:
        return pb.Selection(below=namespaces.digest_prefix("--prefix", given.prefix))
    if given.namespace is not None:
        return pb.Selection(namespace=namespaces.named(context, "--namespace", given.namespace))
    if given.salt is not None:
        return pb.Selection(namespace=namespaces.of_salt(prompt.scheduler, given.salt))
    if older_than is not None:
        return pb.Selection(idle_ms=parsed("--older-than", older_than, parse_duration_ms))
    if prompt.num_given:
        return pb.Selection(prompt=pb.DigestList(digests=tokenized(prompt).page_digests))
    return pb.Selection(everything=True)
