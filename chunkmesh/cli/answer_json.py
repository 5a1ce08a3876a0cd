"""The object that `chunkmesh generate --json` prints. Pure.

A single output's fields stand at the top; several stand in a list under "outputs". What belongs to
the request stands at the top always. What was not asked for is left out.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from chunkmesh.cli.answer import Answer
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb

Fields: TypeAlias = dict[str, object]

_FINISH_REASONS = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_ABORT: "abort",
}


def as_json(answer: Answer, prompt_ids: Sequence[int] = ()) -> str:
    """Return the object in one line.

    prompt_ids are the prompt's, if its log-probabilities were asked for.
    """
    outputs = [_output(complete) for complete in answer.outputs]
    fields: Fields = {"request_id": answer.request_id}
    fields |= outputs[0] if len(outputs) == 1 else {"outputs": outputs}
    if prompt_ids:
        parts = [_positions(part.logprobs) for part in answer.prompt_logprobs]
        # Nothing predicts the first token.
        first: Fields = {"logprob": None, "top": []}
        positions = [first, *itertools.chain(*parts)]
        # An aborted request has told of its first tokens only.
        fields["prompt_logprobs"] = _of_ids(prompt_ids[: len(positions)], positions)
    return json.dumps(fields, ensure_ascii=False)


def _output(complete: pb.GenerateComplete) -> Fields:
    """Return one output's fields."""
    by_string = complete.HasField("matched_stop")
    by_id = complete.HasField("matched_token_id")
    fields: Fields = {
        "index": complete.index,
        "text": complete.text,
        "output_ids": list(complete.output_ids),
        "prompt_tokens": complete.prompt_tokens,
        "cached_tokens": complete.cached_tokens,
        "completion_tokens": complete.completion_tokens,
        "finish_reason": _FINISH_REASONS.get(complete.finish_reason),
        "matched_stop": complete.matched_stop if by_string else None,
        "matched_token_id": complete.matched_token_id if by_id else None,
        "ttft_ms": round(complete.ttft_ms, 1),
        "e2e_ms": round(complete.e2e_ms, 1),
        "chunks": list(complete.chunk_tokens),
        "num_preemptions": complete.num_preemptions,
    }
    if complete.HasField("logprobs"):
        fields["logprobs"] = _of_ids(complete.output_ids, _positions(complete.logprobs))
    return fields


def _of_ids(token_ids: Iterable[int], positions: list[Fields]) -> list[Fields]:
    """Put before each position the id that stands there."""
    return [
        {"token_id": token_id, **position}
        for token_id, position in zip(token_ids, positions, strict=True)
    ]


def _positions(message: common_pb2.TokenLogprobs) -> list[Fields]:
    """Return the log-probability at each position, and those of the likeliest ids there."""
    num_top = message.num_top
    tops = [
        {"token_id": token_id, "logprob": _short(logprob)}
        for token_id, logprob in zip(message.top_ids, message.top_logprobs, strict=True)
    ]
    return [
        {"logprob": _short(logprob), "top": tops[index * num_top : (index + 1) * num_top]}
        for index, logprob in enumerate(message.logprobs)
    ]


def _short(logprob: float) -> float:
    """Drop the digits that a float32 does not have."""
    return float(f"{logprob:.6g}")
