"""The flags of SamplingParams: each field of SamplingOptions is one.

A command decorated with takes_sampling has them all beside its own and gets them as one value.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from chunkmesh.cli.flags import (
    MAX_UINT32,
    IgnoreEos,
    MaxNewTokens,
    MinP,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """What was given; None leaves the choice to the model and the scheduler."""

    max_new_tokens: MaxNewTokens = None
    min_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=MAX_UINT32, help="No end token before this many."),
    ] = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
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
    seed: Seed = None
    n: Annotated[
        int | None,
        typer.Option("--n", metavar="N", min=1, max=128, help="Outputs to make of the prompt."),
    ] = None
    stop: Stop = None
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
    ignore_eos: IgnoreEos = False
    keep_special_tokens: Annotated[
        bool, typer.Option("--keep-special-tokens", help="Show special tokens in the text.")
    ] = False
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Tell each token's log-probability, in --json.")
    ] = False
    top_logprobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=20, help="Also those of the likeliest ids."),
    ] = None
    prompt_logprobs: Annotated[
        bool, typer.Option("--prompt-logprobs", help="Tell the prompt's log-probabilities.")
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


def takes_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `sampling` by a flag for each field of SamplingOptions."""
    fields = dataclasses.fields(SamplingOptions)

    @functools.wraps(command)
    def with_flags(**given: Any) -> None:  # noqa: ANN401 - typer hands flags of any type
        values = {field.name: given.pop(field.name) for field in fields}
        command(sampling=SamplingOptions(**values), **given)

    hints = get_type_hints(SamplingOptions, include_extras=True)
    own = inspect.signature(command, eval_str=True).parameters.values()
    flags = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields
    ]
    kept = [parameter for parameter in own if parameter.name != "sampling"]
    vars(with_flags)["__signature__"] = inspect.Signature([*kept, *flags])
    return with_flags


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
