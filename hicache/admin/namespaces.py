"""Namespaces for people: what stands for each, and which one somebody means by a few digits."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from chunkmesh.pages import DIGEST_BYTES
from chunkmesh.v1 import generation_pb2
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin.calls import ANSWER_S, ask, ask_scheduler
from hicache.admin.exits import (
    EXIT_ERROR,
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    address,
    fail,
    unicode_text,
)

MIN_DIGITS = 8


def listed(context: typer.Context) -> Sequence[pb.NamespaceState]:
    """Ask for all namespaces, those of most bytes first."""
    request = pb.ListNamespacesRequest()
    reply = ask(context, lambda hicache: hicache.ListNamespaces(request, timeout=ANSWER_S))
    return reply.namespaces


def digest_prefix(flag: str, text: str) -> bytes:
    """Read the first digits of a digest."""
    try:
        prefix = bytes.fromhex(text)
    except ValueError:
        prefix = b""
    if not MIN_DIGITS // 2 <= len(prefix) <= DIGEST_BYTES or len(text) != 2 * len(prefix):
        wanted = f"an even number of hex digits, {MIN_DIGITS} to {2 * DIGEST_BYTES}"
        fail(f"{flag}: {text!r} is not {wanted}", EXIT_USAGE)
    return prefix


def named(context: typer.Context, flag: str, text: str) -> bytes:
    """Return the one namespace whose digest begins so; ends the command if there is none."""
    prefix = digest_prefix(flag, text)
    if len(prefix) == DIGEST_BYTES:
        return prefix
    found = [each.namespace for each in listed(context) if each.namespace.startswith(prefix)]
    if not found:
        fail(f"{flag}: no namespace begins with {text}", EXIT_NOT_FOUND)
    if len(found) > 1:
        fail(f"{flag}: {len(found)} namespaces begin with {text}; give more digits", EXIT_USAGE)
    return found[0]


def of_salt(scheduler: str, salt: str) -> bytes:
    """Ask a scheduler for the namespace of a salt on the model that it serves."""
    where = address("--scheduler", scheduler)
    request = generation_pb2.TokenizeRequest(text="a", cache_salt=unicode_text("cache_salt", salt))
    reply = ask_scheduler(where, lambda scheduler: scheduler.Tokenize(request, timeout=ANSWER_S))
    if not reply.namespace:
        fail(f"the scheduler at {where} has no route yet, so it knows no namespace", EXIT_ERROR)
    return reply.namespace


def salt_text(state: pb.NamespaceState) -> str:
    """Return whether a salt went in, as far as it is known."""
    if not state.HasField("info"):
        return "?"
    return "yes" if state.info.salted else "no"
