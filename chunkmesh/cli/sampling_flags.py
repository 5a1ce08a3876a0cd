"""The flags of SamplingParams: each field of these groups is one."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from chunkmesh.cli.flags import MAX_UINT32
from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen; None leaves it to the model and the scheduler."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=MAX_UINT32, help="Most new tokens. Default 128, or what fits."
        ),
    ] = None
    until_full: Annotated[
        bool, typer.Option("--until-full", help="As many new tokens as context and KV pool leave.")
    ] = False
    min_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=MAX_UINT32, help="No end token before this many."),
    ] = None
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token. Default: the model's, or 1.")
    ] = None
    top_p: Annotated[
        float | None, typer.Option(help="Keep the smallest set of this probability.")
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            metavar="K", min=0, max=MAX_UINT32, help="Keep the k likeliest ids; 0 keeps all."
        ),
    ] = None
    min_p: Annotated[
        float | None, typer.Option(help="Keep ids at least this share as probable as the best.")
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="Taken from an id's logit for each time it stands in the text; -2 to 2."),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Taken once from the logits of ids that stand in the text; -2 to 2."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Divides the logits of ids that stand in the text; up to 10, 1 is none."),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=BIAS", help="Add to an id's logit; may be given several times."),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=(1 << 64) - 1, help="Makes sampling repeatable."),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this string; may be given several times."),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--stop-token-id",
            metavar="ID",
            min=0,
            max=MAX_UINT32,
            help="End at this token id; may be given several times.",
        ),
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's end tokens.")
    ] = False
    keep_special_tokens: Annotated[
        bool, typer.Option("--keep-special-tokens", help="Show special tokens in the text.")
    ] = False

    def message(self) -> pb.SamplingParams:
        """Return the message.

        Raises:
            typer.BadParameter: a bias is not written as ID=BIAS.
        """
        fields = dataclasses.asdict(self)
        fields["logit_bias"] = dict(map(_bias, self.logit_bias or ()))
        if fields.pop("keep_special_tokens"):
            fields["skip_special_tokens"] = False
        return pb.SamplingParams(**fields)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How many outputs are made, and what is told of them."""

    n: Annotated[
        int | None,
        typer.Option("--n", metavar="N", min=1, max=128, help="Outputs to make of the prompt."),
    ] = None
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Tell each token's log-probability, in --json.")
    ] = False
    prompt_logprobs: Annotated[
        bool, typer.Option("--prompt-logprobs", help="Tell those of the prompt, in --json.")
    ] = False
    top_logprobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=20, help="Also those of the likeliest ids."),
    ] = None

    @property
    def num_outputs(self) -> int:
        """How many outputs come, >= 1."""
        return self.n or 1

    def message(self) -> pb.SamplingParams:
        """Return these fields of the message.

        Raises:
            typer.BadParameter: likeliest ids are wanted of nothing.
        """
        if self.top_logprobs and not (self.logprobs or self.prompt_logprobs):
            raise typer.BadParameter("--top-logprobs needs --logprobs or --prompt-logprobs")
        return pb.SamplingParams(**dataclasses.asdict(self))


def _bias(text: str) -> tuple[int, float]:
    """Read ID=BIAS."""
    token_id, _, bias = text.partition("=")
    try:
        read = int(token_id), float(bias)
    except ValueError as error:
        raise typer.BadParameter(f"--logit-bias {text}: must be ID=BIAS, as in 42=-1.5") from error
    if not 0 <= read[0] <= MAX_UINT32:
        raise typer.BadParameter(f"--logit-bias {text}: {token_id} is no token id")
    return read
