"""Flags that several commands take, each stated once."""

from __future__ import annotations

from typing import Annotated

import typer

MAX_UINT32 = (1 << 32) - 1

Server = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The scheduler's users' port.", show_default=True)
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=MAX_UINT32, help="Most new tokens. Default 128, or what fits."
    ),
]
Temperature = Annotated[
    float | None, typer.Option(help="0 takes the likeliest token. Default: the model's, or 1.")
]
TopP = Annotated[float | None, typer.Option(help="Keep the smallest set of this probability.")]
TopK = Annotated[
    int | None,
    typer.Option(metavar="K", min=0, max=MAX_UINT32, help="Keep the k likeliest ids; 0 keeps all."),
]
MinP = Annotated[
    float | None, typer.Option(help="Keep ids at least this share as probable as the best.")
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, max=(1 << 64) - 1, help="Makes sampling repeatable."),
]
Stop = Annotated[
    list[str] | None, typer.Option(help="End before this string; may be given several times.")
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's end tokens.")]
CacheSalt = Annotated[
    str, typer.Option(help="Share cached prefixes only with requests of the same salt.")
]
