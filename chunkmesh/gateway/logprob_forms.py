"""Log-probabilities as completions and as chats tell them. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from chunkmesh.gateway.token_names import TokenNames
from chunkmesh.v1 import common_pb2

_LEAST = -9999.0
"""What OpenAI writes for a token that is ruled out."""


class TextOffsets:
    """Where each token of one output begins in its text, in characters."""

    def __init__(self) -> None:
        """Begin at the text's begin."""
        self._num_characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: bytes) -> int:
        """Take the next token, and return where it begins."""
        begin = self._num_characters
        self._num_characters += len(self._decoder.decode(token))
        return begin


def completion_logprobs(
    ids: Sequence[int],
    logprobs: common_pb2.TokenLogprobs,
    names: TokenNames,
    offsets: TextOffsets,
) -> dict[str, JsonValue]:
    """Return what the choice of a completion tells of its new tokens."""
    likeliest: list[JsonValue] = []
    for (token_id, logprob), top in zip(
        _rows(ids, logprobs), _tops(len(ids), logprobs), strict=True
    ):
        row: dict[str, JsonValue] = {}
        for top_id, top_logprob in [*top, (token_id, logprob)]:
            row.setdefault(names.key_of(top_id), top_logprob)
        likeliest.append(row)
    return {
        "tokens": [names.key_of(token_id) for token_id in ids],
        "token_logprobs": [logprob for _, logprob in _rows(ids, logprobs)],
        "top_logprobs": likeliest if logprobs.num_top else None,
        "text_offset": [offsets.add(names.bytes_of(token_id)) for token_id in ids],
    }


def chat_logprobs(
    ids: Sequence[int], logprobs: common_pb2.TokenLogprobs, names: TokenNames
) -> dict[str, JsonValue]:
    """Return what the choice of a chat tells of its new tokens."""
    content: list[JsonValue] = [
        {
            **_token(token_id, logprob, names),
            "top_logprobs": [_token(*each, names) for each in top],
        }
        for (token_id, logprob), top in zip(
            _rows(ids, logprobs), _tops(len(ids), logprobs), strict=True
        )
    ]
    return {"content": content, "refusal": None}


def _token(token_id: int, logprob: float, names: TokenNames) -> dict[str, JsonValue]:
    return {
        "token": names.text_of(token_id),
        "logprob": logprob,
        "bytes": list(names.bytes_of(token_id)),
    }


def _rows(ids: Sequence[int], logprobs: common_pb2.TokenLogprobs) -> Iterator[tuple[int, float]]:
    """Yield each token with its log-probability."""
    for token_id, logprob in zip(ids, logprobs.logprobs, strict=True):
        yield token_id, max(logprob, _LEAST)


def _tops(num_tokens: int, logprobs: common_pb2.TokenLogprobs) -> Iterator[list[tuple[int, float]]]:
    """Yield the likeliest tokens at each position."""
    for position in range(num_tokens):
        part = slice(position * logprobs.num_top, (position + 1) * logprobs.num_top)
        pairs = zip(logprobs.top_ids[part], logprobs.top_logprobs[part], strict=True)
        yield [(top_id, max(logprob, _LEAST)) for top_id, logprob in pairs]
