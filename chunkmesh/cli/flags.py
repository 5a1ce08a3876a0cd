"""Flags that several commands take, each stated once."""

from __future__ import annotations

from typing import Annotated

import typer

MAX_UINT32 = (1 << 32) - 1

Server = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The scheduler's users' port.", show_default=True)
]
ServerList = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT,...",
        help="The users' port of the mesh's scheduler, and of those that stand by.",
        show_default=True,
    ),
]
RetryFor = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Seconds to try a request again while no scheduler serves, unless output has come."
        " Default: 30 with several servers, else 0.",
        show_default=False,
    ),
]
CacheSalt = Annotated[
    str, typer.Option(help="Share cached prefixes only with requests of the same salt.")
]
Priority = Annotated[
    int,
    typer.Option(
        metavar="N", min=-100, max=100, help="Higher goes first; those of equal priority share."
    ),
]
