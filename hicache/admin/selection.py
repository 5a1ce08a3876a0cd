"""Which pages a command is about, from the flags that name them."""

from __future__ import annotations

import dataclasses

import typer

from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import namespaces
from hicache.admin.exits import EXIT_USAGE, fail, parsed
from hicache.admin.flags import SCHEDULER
from hicache.admin.prompts import GivenPrompt, tokenized
from hicache.admin.units import parse_duration_ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The flags; exactly one of them counts, and --cache-salt goes with a prompt."""

    prefix: str | None = None
    older_than: str | None = None
    salt: str | None = None
    namespace: str | None = None
    prompt: GivenPrompt = dataclasses.field(default_factory=GivenPrompt)
    everything: bool = False
    scheduler: str = SCHEDULER

    @property
    def num_given(self) -> int:
        """How many choices were made."""
        named = (self.prefix, self.older_than, self.salt, self.namespace)
        given = sum(each is not None for each in named)
        return given + self.prompt.num_given + self.everything


def select(context: typer.Context, given: Given, *, or_all: bool = False) -> pb.Selection:
    """Turn flags into a selection; or_all takes all pages if none is given."""
    nothing_means_all = or_all and given.num_given == 0
    if given.num_given != 1 and not nothing_means_all:
        fail(
            "give one of --prefix, --namespace, --salt, --older-than, --text, --prompt-file, "
            "--tokens and --all, as far as the command has them",
            EXIT_USAGE,
        )
    if given.prefix is not None:
        return pb.Selection(below=namespaces.digest_prefix("--prefix", given.prefix))
    if given.older_than is not None:
        idle_ms = parsed("--older-than", given.older_than, parse_duration_ms)
        return pb.Selection(idle_ms=idle_ms)
    if given.everything or nothing_means_all:
        return pb.Selection(everything=True)
    if given.prompt.num_given:
        digests = tokenized(given.scheduler, given.prompt).page_digests
        return pb.Selection(prompt=pb.DigestList(digests=digests))
    return pb.Selection(namespace=_namespace(context, given))


def _namespace(context: typer.Context, given: Given) -> bytes:
    if given.namespace is not None:
        return namespaces.named(context, "--namespace", given.namespace)
    assert given.salt is not None, "exactly one choice was made"
    return namespaces.of_salt(given.scheduler, given.salt)
