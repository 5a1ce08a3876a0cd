"""Flags that several commands take, each stated once."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Scheduler = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="Scheduler's users' port; it knows the tokenizer."),
]
SCHEDULER = "127.0.0.1:50051"


class Role(enum.StrEnum):
    """Whose message of a chat a prompt is."""

    USER = "user"
    SYSTEM = "system"


Text = Annotated[str | None, typer.Option(help="The prompt.")]
PromptFile = Annotated[Path | None, typer.Option(metavar="FILE", help="File with the prompt.")]
Tokens = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with a JSON list of token ids.")
]
ChatRole = Annotated[
    Role | None,
    typer.Option(
        help="Put the prompt into the model's chat template: user as chunkmesh generate --chat "
        "sends it, system as every chat with this system message begins."
    ),
]
CacheSalt = Annotated[str, typer.Option(help="Salt that requests of this prompt carry.")]
Prefix = Annotated[
    str | None,
    typer.Option(
        metavar="HEX", help="A page, by the first digits of its digest, and all below it."
    ),
]
Namespace = Annotated[
    str | None, typer.Option(metavar="HEX", help="All of a namespace, by its first digits.")
]
Salt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="All that requests of this salt stored.")
]
OlderThan = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="What nothing has touched for so long: 30s, 2h, 7d."),
]
All = Annotated[bool, typer.Option("--all", help="All pages.")]
